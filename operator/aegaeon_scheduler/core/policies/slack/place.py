"""Places waiting groups, most urgent first: where memory and time are free, else preempting groups with more slack."""

from __future__ import annotations

from aegaeon_scheduler.core.policies.slack.group import Group, Load, Still, may_leave, too_small
from aegaeon_scheduler.core.policies.slack.picture import Picture
from aegaeon_scheduler.core.policies.slack.price import absence_s
from aegaeon_scheduler.core.policies.slack.view import Best, View
from aegaeon_scheduler.core.state import Instance


def place_waiting(picture: Picture) -> None:
    """Place what can be placed."""
    free = [v for v in picture.views if v.free]
    if not free:
        return
    best = Best.of(free)
    for rank, _, group, rest in picture.waiting():
        if not free:
            break
        if best.beyond(group, rank, rest):
            continue
        views = _candidates(picture, group, rest, free)
        if views and _place(picture, group, views):
            free = [v for v in free if v.free]
            best = Best.of(free)


def _place(picture: Picture, group: Group, views: list[View]) -> bool:
    """Whether the search for a place ended."""
    return _to_room(picture, group, views) or _preempt(picture, group, views) or _drop_lone(picture, group, views)


def _candidates(picture: Picture, group: Group, rest: Still, free: list[View]) -> list[View]:
    """Free instances that may take it: those near its weights, else those that may read them from disk."""
    only = rest.only or group.target
    group.target = None
    views = _allowed(picture, group, rest, only, free)
    reach, name = picture.reach, group.model.name
    if only is not None or not reach.limited:
        return views
    near = [view for view in views if reach.near(name, view.inst)]
    return near or [view for view in views if reach.may_read(name, view.inst, rest.node)]


def _allowed(picture: Picture, group: Group, rest: Still, only: Instance | None, free: list[View]) -> list[View]:
    name, node, views = group.model.name, rest.node, []
    for view in free:
        inst = view.inst
        if (only is not None and inst is not only) or (node is not None and inst.node != node):
            continue
        if not group.may_go(inst) or name in view.models:
            continue
        if picture.uneven and node is None and too_small(picture.pool, inst, group.model, rest.longest):
            continue
        views.append(view)
    return views


def _to_room(picture: Picture, group: Group, views: list[View]) -> bool:
    """Where there is room, to the least busy with it; an empty instance always takes it. True ends the search."""
    found = _roomiest(picture, group, views)
    if found is None:
        return False
    view, load = found
    settings = picture.settings
    in_time = view.util + load.util <= settings.full_util or view.util < settings.idle_util
    if in_time or _urgent(picture, load):
        picture.admit(view, load, "room and time")
    return True  # with room but no time it waits for either


def _roomiest(picture: Picture, group: Group, views: list[View]) -> tuple[View, Load] | None:
    found: tuple[float, float, int, View, Load] | None = None
    for view in views:
        load = picture.load_on(group, view.inst)
        if (view.loads or view.lone) and view.over(load) > 0:
            continue
        score = (view.util + load.util, view.util, view.inst.order)
        if found is None or score < found[:3]:
            found = (*score, view, load)
    return None if found is None else found[3:]


def _urgent(picture: Picture, load: Load) -> bool:
    """Whether so much of TTFT is used up that it is placed even where that makes others late."""
    return load.key - picture.now < picture.settings.urgent_share * load.group.model.config.slo.ttft_s


def _drop_lone(picture: Picture, group: Group, views: list[View]) -> bool:
    """Only copies fill every place that it may have: when it is urgent some of them are dropped."""
    view = min(views, key=lambda v: (v.kept(group.model.name) + v.nbytes, v.inst.order))
    load = picture.load_on(group, view.inst)
    fits = not view.loads or view.nbytes + load.nbytes <= view.fits
    if not (view.lone and fits and _urgent(picture, load)):
        return False
    picture.admit(view, load, "only copies are dropped")
    return True


def _preempt(picture: Picture, group: Group, views: list[View]) -> bool:
    """The best place among those where groups with more slack can make room."""
    found = _best_victims(picture, group, views)
    if found is None:
        return False
    view, victims = found
    for victim in victims:
        slack_s = victim.key - picture.now
        picture.evict(view, victim, f"preempted by {group.model.name}, slack {slack_s:.3g} s")
    picture.admit(view, picture.load_on(group, view.inst), "most slack here")
    return True


def _best_victims(picture: Picture, group: Group, views: list[View]) -> tuple[View, list[Load]] | None:
    best: tuple[float, int, View, list[Load]] | None = None
    for view in views:
        load = picture.load_on(group, view.inst)
        victims = _victims(picture, view, load) if view.most > load.rank else []
        if victims:
            score = (view.util - max(x.rank - _away_s(picture, x, load, view) for x in victims), view.inst.order)
            if best is None or score < best[:2]:
                best = (*score, view, victims)
    return None if best is None else best[2:]


def _victims(picture: Picture, view: View, load: Load) -> list[Load]:
    """Groups to evict, most slack first, until it fits; none when it would not or that costs more than it saves.

    One with in-flight turns may go as well: its copies out wait for them.
    """
    over = view.over(load)
    victims: list[Load] = []
    for x in sorted(view.loads, key=lambda x: (-x.rank, x.group.number)):
        above = x.group.model.tier_s > load.group.model.tier_s
        if not _pays(picture, view, x, load) or not may_leave(x.group, begun=above):
            continue
        victims.append(x)
        over -= view.freed(x)
        if over <= 0 or len(victims) == len(view.loads):
            return victims
    return []


def _pays(picture: Picture, view: View, victim: Load, load: Load) -> bool:
    """Whether a victim has so much more slack that it can be absent, and has run here for a while.

    Beside other groups a switch costs the engine nothing: they run meanwhile. A tier above pays no price.
    """
    settings = picture.settings
    if picture.now - victim.group.since < settings.min_stay_s:
        return False
    least_s = settings.preempt_share * load.group.model.config.slo.ttft_s
    if victim.group.model.tier_s > load.group.model.tier_s:
        return victim.rank > load.rank + least_s
    times = settings.away_margin if len(view.loads) > 1 else settings.idle_margin
    return victim.rank > load.rank + max(least_s, times * _away_s(picture, victim, load, view))


def _away_s(picture: Picture, victim: Load, load: Load, view: View) -> float:
    return absence_s(picture.pool.estimates, victim, load, view.inst)
