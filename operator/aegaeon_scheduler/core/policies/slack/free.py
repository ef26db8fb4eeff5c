"""Instances that can take a load, in the orders in which a pass looks for a place; most are never looked at.

They change in one way while groups are placed: one that was given a load is free no longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import inf

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.policies.slack.group import Group, Still
from aegaeon_scheduler.core.policies.slack.view import View


class Lot:
    """Some of one make. `room`: bytes of the largest group that may fit one of them; `most`: the largest rank there."""

    def __init__(self, views: list[View]) -> None:
        self._views = views
        self.inst = views[0].inst
        self.room = max(_room(view) for view in views)
        self.most = max(view.most for view in views)

    @cached_property
    def idle(self) -> list[View]:
        """Least busy first."""
        return sorted(self._views, key=lambda v: (v.util, v.inst.order))

    @cached_property
    def slack(self) -> list[tuple[float, int, View]]:
        """Those with groups to preempt; before each what no choice of these scores below, smallest first."""
        return sorted((v.util - v.most, v.inst.order, v) for v in self._views if v.loads)


class Span:
    """Some of them, of several makes."""

    def __init__(self, views: list[View]) -> None:
        self.views = views
        makes: dict[tuple[str, int], list[View]] = {}
        for view in views:
            makes.setdefault((view.inst.device, view.inst.slab_bytes), []).append(view)
        self.lots = [Lot(these) for these in makes.values()]
        self._room = max((lot.room for lot in self.lots), default=-inf)
        self._most = max((lot.most for lot in self.lots), default=-inf)

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
        """Whether one of them is free yet."""
        return _last(self._latest) is not None

    def beyond(self, nbytes: int, rank: float) -> bool:
        """Whether none of them has so much room or a group later than this rank."""
        if nbytes > self._room and self._most <= rank:
            return True  # as of the start: most end here
        if _last(self._empty) is not None:
            return False
        room, most = _last(self._roomiest), _last(self._latest)
        return room is None or most is None or (nbytes > room.fits - room.nbytes and most.most <= rank)


class Free:
    """All of them, and those of each node."""

    def __init__(self, views: list[View], settings: SlackSettings) -> None:
        self._settings = settings
        self._spans: dict[str | None, Span] = {None: Span(views)}
        self._on: dict[str, list[View]] = {}
        for view in views:
            self._on.setdefault(view.inst.node, []).append(view)

    def __bool__(self) -> bool:
        return self._spans[None].left()

    def span(self, node: str | None) -> Span:
        """Those of a node, or all."""
        span = self._spans.get(node)
        if span is None:
            span = self._spans[node] = Span(self._on.get(node or "", []))
        return span

    def beyond(self, group: Group, rank: float, rest: Still) -> bool:
        """Whether none of them can take a group that waits; quick, for most of them."""
        fp = group.model.fp
        least_s = self._settings.preempt_share * group.model.config.slo.ttft_s
        return self.span(rest.node).beyond(fp.weight_bytes + rest.blocks * fp.kv_block_bytes, rank + least_s)


def still(views: list[View]) -> Iterator[View]:
    """Those that are free yet."""
    return (view for view in views if view.free)


def _room(view: View) -> float:
    """Bytes of the largest group that may fit; an empty instance takes any."""
    return view.fits - view.nbytes if view.loads or view.lone else inf


def _last(views: list[View]) -> View | None:
    while views and not views[-1].free:
        views.pop()
    return views[-1] if views else None
