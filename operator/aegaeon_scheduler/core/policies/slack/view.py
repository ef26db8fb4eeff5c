"""An instance as the policy sees it: what its groups ask of it, and what would fit.

Kept from one event to the next, and computed again where a group has changed. A pass keeps it up to date by its moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import ModelName
from aegaeon_scheduler.core.estimate import Estimates
from aegaeon_scheduler.core.policies.slack.group import Group, Load
from aegaeon_scheduler.core.state import Instance


@dataclass(slots=True, eq=False)
class View:
    """An instance and the `groups` that are placed on it; `loads` are of those with members.

    `size` bytes are for models, `fits` of them may be filled. For the time of a pass: `free`: no load is under way or
    waits for room; `most` is the largest rank of its groups; `lone` are the bytes of models whose only quick copy is
    here.
    """

    inst: Instance
    size: int
    fits: float
    groups: list[Group] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    util: float = 0.0
    nbytes: int = 0
    models: set[ModelName] = field(default_factory=set)
    free: bool = False
    most: float = -inf
    lone: dict[ModelName, int] = field(default_factory=dict)
    stale: bool = True
    _until: float = -inf  # what was noted holds

    @staticmethod
    def of(inst: Instance, headroom: float) -> View:
        """Nothing is on it."""
        size = inst.slabs * inst.slab_bytes
        return View(inst, size, size * (1.0 - headroom))

    def changed(self, group: Group) -> None:
        """A group came, went, or asks for something else."""
        self.stale = True

    def outdated(self) -> bool:
        """Returns whether its groups have changed, or what their steps are estimated to take."""
        if not self.stale:
            for load in self.loads:
                if load.outdated():
                    return True
        return self.stale

    def measure(self, estimates: Estimates) -> None:
        """Sums up what the instance's groups need."""
        inst, util, nbytes, stale = self.inst, 0.0, 0, False
        self.loads = loads = [group.load(estimates, inst) for group in self.groups if group.members]
        self.models = models = set()
        for load in loads:
            model = load.group.model
            models.add(model.name)
            util += load.util
            nbytes += load.nbytes
            stale = stale or model.pools  # their prompts count, which come and go
        self.util, self.nbytes, self.most, self._until, self.stale = util, nbytes, -inf, -inf, stale

    def note(self, now: float, settings: SlackSettings) -> None:
        """When its groups are due, as of now. Once in a pass: what moves of the pass change does not count."""
        if now <= self._until:
            return
        most, until = -inf, inf
        for load in self.loads:
            if now > load.until:
                load.note(now, settings)
            most = load.rank if load.rank > most else most
            until = load.until if load.until < until else until
        self.most, self._until = most, until

    def reranked(self) -> None:
        """Ranks of its groups are others."""
        self._until = -inf
        for load in self.loads:
            load.until = -inf

    def take_loads(self) -> None:
        """Updates `free`: whether a load can begin now."""
        inst = self.inst
        self.free = not (inst.wanted or inst.book.loads or inst.incoming)

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
