"""Engines as the policy sees them: what their groups ask of each, what would fit, and which can take a load.

Kept from one event to the next, and computed again where a group has changed. A pass keeps them up to date by its
moves, and looks for places in an order in which most engines are never looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import ModelName
from aegaeon_scheduler.core.estimate import Estimates
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.group import Group, Load
from aegaeon_scheduler.core.policies.slack.order import Order, Still
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


class Span:
    """Instances of one node, or all of them."""

    def __init__(self, views: list[View]) -> None:
        self.views = views
        self.look()

    def look(self) -> None:
        """Updates `room`, bytes of the largest group that may fit one of those that are still free, and `most`, the
        largest rank there."""
        free = [view for view in self.views if view.free]
        self.room = max(map(_room, free), default=-inf)
        self.most = max((view.most for view in free), default=-inf)

    @cached_property
    def idle(self) -> list[View]:
        """Least busy first."""
        return sorted(self.views, key=lambda v: (v.util, v.inst.order))

    @cached_property
    def slack(self) -> list[tuple[float, int, View]]:
        """Lists instances with groups to preempt; before each what no choice of these scores below, smallest first."""
        return sorted((v.util - v.most, v.inst.order, v) for v in self.views if v.loads)


class Free:
    """All of them, and those of each node."""

    def __init__(self, views: list[View]) -> None:
        nodes: dict[str | None, list[View]] = {None: views}
        for view in views:
            nodes.setdefault(view.inst.node, []).append(view)
        self._spans = {node: Span(these) for node, these in nodes.items()}

    def __bool__(self) -> bool:
        return any(view.free for view in self._spans[None].views)

    def placed(self, moves: Iterable[Move]) -> None:
        """Groups were placed by these moves, or none: of a thousand that wait few are."""
        for move in moves:
            if move.instance is not None:
                self._spans[None].look()
                self._spans[move.instance.node].look()

    def span(self, node: str | None) -> Span:
        """Returns the span of a node's instances, or of all."""
        return self._spans.get(node) or Span([])

    def in_reach(self, waiting: Iterable[Group], now: float) -> list[Group]:
        """Returns waiting groups without those that nothing on their node can take, as of the start: most end here."""
        limits = {node: (span.room, span.most) for node, span in self._spans.items()}
        return [group for group in waiting if not group.out_of_reach(now, limits)]

    def beyond(self, order: Order, rest: Still) -> bool:
        """Returns whether none of the instances has so much room, or a group late enough, for a group that waits."""
        span = self.span(rest.node)
        return rest.nbytes > span.room and span.most <= order.least


def _room(view: View) -> float:
    """Bytes of the largest group that may fit; an empty instance takes any."""
    return view.fits - view.nbytes if view.loads or view.lone else inf
