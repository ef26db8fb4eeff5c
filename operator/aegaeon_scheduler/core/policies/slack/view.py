"""An instance as a pass sees it: what is asked of it, and what would fit. Kept up to date by the pass's own moves."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from aegaeon_scheduler.core.domain import ModelName
from aegaeon_scheduler.core.policies.slack.group import Group, Load, Still
from aegaeon_scheduler.core.state import Instance


@dataclass(slots=True)
class View:
    """An instance: what its groups ask of it. `free`: no load is under way or waits for room.

    `size` bytes are for models, `fits` of them may be filled; `most` is the largest rank of its groups; `lone` are the
    bytes of models whose only quick copy is here.
    """

    inst: Instance
    loads: list[Load]
    util: float
    nbytes: int
    size: int
    fits: float
    free: bool
    most: float
    models: set[ModelName]
    lone: dict[ModelName, int]

    @staticmethod
    def of(inst: Instance, loads: list[Load], headroom: float, lone: dict[ModelName, int]) -> View:
        """As it stands."""
        size = inst.slabs * inst.slab_bytes
        view = View(inst, [], 0.0, 0, size, size * (1.0 - headroom), False, -inf, set(), lone)
        view.free = not (inst.wanted or inst.book.loads or inst.incoming)
        for load in loads:
            view.add(load)
        return view

    def kept(self, name: ModelName) -> int:
        """Bytes of only copies without a group here, beside those of this model."""
        return sum(b for n, b in self.lone.items() if n != name and n not in self.models)

    def freed(self, load: Load) -> int:
        """Bytes that its leaving makes room of: an only copy stays."""
        return load.nbytes - self.lone.get(load.group.model.name, 0)

    def over(self, load: Load) -> float:
        """Bytes that would be missing if it came."""
        return self.nbytes + self.kept(load.group.model.name) + load.nbytes - self.fits

    def add(self, load: Load) -> None:
        """A group comes."""
        self.loads.append(load)
        self.util += load.util
        self.nbytes += load.nbytes
        self.most = max(self.most, load.rank)
        self.models.add(load.group.model.name)

    def join(self, load: Load, other: Load) -> None:
        """A group comes that shares the weights, and the steps, of one that is here."""
        load.util += other.util
        load.nbytes += other.nbytes - other.weights
        load.key, load.rank = min(load.key, other.key), min(load.rank, other.rank)
        self.util += other.util
        self.nbytes += other.nbytes - other.weights
        self.most = max(x.rank for x in self.loads)

    def drop(self, load: Load) -> None:
        """A group goes."""
        self.loads.remove(load)
        self.util -= load.util
        self.nbytes -= load.nbytes
        self.most = max((x.rank for x in self.loads), default=-inf)
        self.models.discard(load.group.model.name)


@dataclass(slots=True)
class Best:
    """The most that any of some instances offers: bytes of room, slack of a group to preempt; `empty`: all of one."""

    room: float
    most: float
    empty: bool

    @staticmethod
    def of(views: list[View]) -> Best:
        """Over these."""
        room = max((v.fits - v.nbytes for v in views), default=0.0)
        return Best(room, max((v.most for v in views), default=-inf), any(not v.loads for v in views))

    def beyond(self, group: Group, rank: float, rest: Still) -> bool:
        """Whether none of them can take a group that waits; quick, for most of them."""
        fp = group.model.fp
        nbytes = fp.weight_bytes + rest.blocks * fp.kv_block_bytes
        return not self.empty and nbytes > self.room and self.most <= rank
