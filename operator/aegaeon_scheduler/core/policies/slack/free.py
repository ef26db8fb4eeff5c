"""Instances that can take a load, in the orders in which a pass looks for a place; most are never looked at.

They change in one way while groups are placed: one that was given a load is free no longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import inf

from aegaeon_scheduler.core.policies.slack.group import Group, Order, Still, in_reach
from aegaeon_scheduler.core.policies.slack.view import View


class Lot:
    """Some of one make. `room`: bytes of the largest group that may fit one of them; `most`: the largest rank there."""

    def __init__(self, views: list[View]) -> None:
        self._views = views
        self.inst = views[0].inst
        self.room, self.most = _limits(views)

    @cached_property
    def idle(self) -> list[View]:
        """Least busy first."""
        return sorted(self._views, key=lambda v: (v.util, v.inst.order))

    @cached_property
    def slack(self) -> list[tuple[float, int, View]]:
        """Lists instances with groups to preempt; before each what no choice of these scores below, smallest first."""
        return sorted((v.util - v.most, v.inst.order, v) for v in self._views if v.loads)


class Span:
    """Some of them, of several makes: `room` and `most` as of a lot, `seen` as of so many groups placed."""

    def __init__(self, views: list[View]) -> None:
        self.views = views
        makes: dict[tuple[str, int], list[View]] = {}
        for view in views:
            makes.setdefault((view.inst.device, view.inst.slab_bytes), []).append(view)
        self.lots = [Lot(these) for these in makes.values()]
        self.room, self.most = _limits(views)
        self.seen = -1

    @cached_property
    def _roomiest(self) -> list[View]:
        return sorted(self.views, key=lambda v: v.nbytes - v.fits, reverse=True)

    @cached_property
    def _latest(self) -> list[View]:
        return sorted(self.views, key=lambda v: v.most)

    @cached_property
    def _empty(self) -> list[View]:
        return [view for view in self.views if not view.loads]

    def left(self) -> bool:
        """Returns whether an instance is still free."""
        return _last(self._latest) is not None

    def look(self, seen: int) -> None:
        """Some of them may be free no longer."""
        self.seen = seen
        if _last(self._empty) is not None:
            return
        room, most = _last(self._roomiest), _last(self._latest)
        if room is None or most is None:
            self.room = self.most = -inf
        else:
            self.room, self.most = room.fits - room.nbytes, most.most


class Free:
    """All of them, and those of each node."""

    def __init__(self, views: list[View]) -> None:
        self._spans: dict[str | None, Span] = {None: Span(views)}
        self._on: dict[str, list[View]] = {}
        for view in views:
            self._on.setdefault(view.inst.node, []).append(view)
        self._placed = 0

    def __bool__(self) -> bool:
        return self._spans[None].left()

    def placed(self) -> None:
        """A group may have been placed."""
        self._placed += 1

    def span(self, node: str | None) -> Span:
        """Returns the span of a node's instances, or of all."""
        span = self._spans.get(node)
        if span is None:
            span = self._spans[node] = Span(self._on.get(node or "", []))
        return span

    def in_reach(self, waiting: Iterable[Group], now: float) -> list[Group]:
        """Returns waiting groups without those that nothing on their node can take, as of the start: most end here."""
        limits: dict[str | None, tuple[float, float]] = {node: _limits(views) for node, views in self._on.items()}
        limits[None] = self._spans[None].room, self._spans[None].most
        return in_reach(waiting, now, limits)

    def beyond(self, order: Order, rest: Still) -> bool:
        """Returns whether none of the instances has so much room, or a group late enough, for a group that waits."""
        span = self.span(rest.node)
        if span.seen != self._placed:
            span.look(self._placed)
        return rest.nbytes > span.room and span.most <= order.least


def still(views: list[View]) -> Iterator[View]:
    """Yields those that are still free."""
    return (view for view in views if view.free)


def _limits(views: list[View]) -> tuple[float, float]:
    """Bytes of the largest group that may fit one of them; the largest rank there."""
    return max(map(_room, views), default=-inf), max((view.most for view in views), default=-inf)


def _room(view: View) -> float:
    """Bytes of the largest group that may fit; an empty instance takes any."""
    return view.fits - view.nbytes if view.loads or view.lone else inf


def _last(views: list[View]) -> View | None:
    while views and not views[-1].free:
        views.pop()
    return views[-1] if views else None
