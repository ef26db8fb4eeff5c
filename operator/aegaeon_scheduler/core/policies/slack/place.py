"""Places waiting groups, most urgent first: where memory and time are free, else preempting groups with more slack."""

from __future__ import annotations

from itertools import islice

from aegaeon_scheduler.core.policies.slack.free import Free, Lot, Span, still
from aegaeon_scheduler.core.policies.slack.group import Group, Load, Still, may_leave
from aegaeon_scheduler.core.policies.slack.picture import Picture
from aegaeon_scheduler.core.policies.slack.price import absence_s, new_s
from aegaeon_scheduler.core.policies.slack.sequences import too_small
from aegaeon_scheduler.core.policies.slack.view import View


def place_waiting(picture: Picture) -> None:
    """Place what can be placed."""
    views = [view for view in picture.views if view.free]
    if not views or not picture.table.waiting:
        return
    free = Free([picture.note(view) for view in views])
    waiting = picture.waiting(free.in_reach(picture.table.waiting.values(), picture.now))
    for _, _, group, order, rest in sorted(waiting):
        if free.beyond(order, rest):
            continue
        _place(picture, Comer(picture, group, rest, free))
        free.placed()
        if not free:
            break


class Comer:
    """A group that waits, and where it may go."""

    def __init__(self, picture: Picture, group: Group, rest: Still, free: Free) -> None:
        self.group = group
        self._picture = picture
        self._rest = rest
        self._only = rest.only or group.target
        group.target = None
        self.span = free.span(rest.node)
        if self._only is None and picture.reach.limited:
            self.span = Span(self._reachable())

    def _reachable(self) -> list[View]:
        """Lists instances near its weights, else those that may read them from disk."""
        reach, name = self._picture.reach, self.group.model.name
        views = [view for view in self.span.views if view.free and self.may_go(view)]
        near = [view for view in views if reach.near(name, view.inst)]
        return near or [view for view in views if reach.may_read(name, view.inst, self._rest.node)]

    def may_go(self, view: View) -> bool:
        """Returns whether a group may be on this instance at all; what is there is another matter."""
        inst, group, picture = view.inst, self.group, self._picture
        if (self._only is not None and inst is not self._only) or group.model.name in view.models:
            return False
        if not group.may_go(inst):
            return False
        uneven = picture.table.uneven and self._rest.node is None
        return not (uneven and too_small(picture.pool, inst, group.model, self._rest.longest))


def _place(picture: Picture, comer: Comer) -> None:
    if not (_to_room(picture, comer) or _preempt(picture, comer)) and picture.reach.limited:
        _drop_lone(picture, comer)


def _to_room(picture: Picture, comer: Comer) -> bool:
    """Where there is room, to the least busy with it; an empty instance always takes it. True ends the search."""
    placement = _roomiest(picture, comer)
    if placement is None:
        return False
    view, load = placement
    settings = picture.settings
    in_time = view.util + load.util <= settings.full_util or view.util < settings.idle_util
    if in_time or _urgent(picture, load):
        picture.admit(view, load, "room and time")
    return True  # with room but no time it waits for either


def _roomiest(picture: Picture, comer: Comer) -> tuple[View, Load] | None:
    """Returns the least busy of every make that has room, counting what the model's first steps there would take."""
    best: tuple[float, float, int, View, Load] | None = None
    for lot in comer.span.lots:
        load = picture.load_on(comer.group, lot.inst)
        if load.nbytes > lot.room:
            continue
        for view in _choices(picture, comer, lot, load):
            score = (view.util + load.util + _first_util(picture, view, load), view.util, view.inst.order)
            if best is None or score < best[:3]:
                best = (*score, view, load)
    return None if best is None else best[3:]


def _choices(picture: Picture, comer: Comer, lot: Lot, load: Load) -> list[View]:
    """The least busy that has room, and if first steps there take time, the least busy where the model ran before."""
    fitting = (view for view in still(lot.idle) if _has_room(view, load) and comer.may_go(view))
    view = next(fitting, None)
    if view is None or not _first_util(picture, view, load):
        return [view] if view is not None else []
    return [view, *islice((v for v in fitting if not _first_util(picture, v, load)), 1)]


def _first_util(picture: Picture, view: View, load: Load) -> float:
    """Returns what the model's first steps on an instance take, as a share of its time within TTFT, weighted."""
    model = load.group.model
    seconds = new_s(picture.pool.estimates, load, view.inst)
    return picture.settings.first_weight * seconds / max(model.config.slo.ttft_s, 1e-9) if seconds else 0.0


def _has_room(view: View, load: Load) -> bool:
    return not (view.loads or view.lone) or view.over(load) <= 0


def _urgent(picture: Picture, load: Load) -> bool:
    """Returns whether so much of TTFT is used up that it is placed even where that makes others late."""
    return load.key - picture.now < picture.settings.urgent_share * load.group.model.config.slo.ttft_s


def _drop_lone(picture: Picture, comer: Comer) -> None:
    """Only copies fill every place that it may have: when it is urgent, or late, some of them are dropped."""
    views = [view for view in still(comer.span.views) if comer.may_go(view)]
    if not views:
        return
    group = comer.group
    view = min(views, key=lambda v: (v.kept(group.model.name) + v.nbytes, v.inst.order))
    load = picture.load_on(group, view.inst)
    fits = not view.loads or view.nbytes + load.nbytes <= view.fits
    if view.lone and fits and (_urgent(picture, load) or group.late(picture.now)):
        picture.admit(view, load, "only copies are dropped")


def _preempt(picture: Picture, comer: Comer) -> bool:
    """The best place among those where groups with more slack can make room."""
    best = _best_victims(picture, comer)
    if best is None:
        return False
    view, victims = best
    group = comer.group
    for victim in victims:
        slack_s = victim.key - picture.now
        picture.evict(view, victim, f"preempted by {group.model.name}, slack {slack_s:.3g} s")
    picture.admit(view, picture.load_on(group, view.inst), "most slack here")
    return True


def _best_victims(picture: Picture, comer: Comer) -> tuple[View, list[Load]] | None:
    """In order of what each can score at best, so that the search ends before most of them."""
    best: tuple[float, int, View, list[Load]] | None = None
    least_s = picture.settings.preempt_share * comer.group.ttft_s
    for lot in comer.span.lots:
        load = picture.load_on(comer.group, lot.inst)
        least = load.rank + least_s
        if lot.most <= least:
            continue
        for bound, order, view in lot.slack:
            if best is not None and bound > best[0]:
                break
            if not view.free or view.most <= least or not comer.may_go(view):
                continue
            victims = _victims(picture, view, load)
            if victims:
                score = view.util - max(x.rank - _away_s(picture, x, load, view) for x in victims)
                if best is None or (score, order) < best[:2]:
                    best = score, order, view, victims
    return None if best is None else best[2:]


def _victims(picture: Picture, view: View, load: Load) -> list[Load]:
    """Groups to evict, most slack first, until it fits; none when it would not or that costs more than it saves."""
    over = view.over(load)
    victims: list[Load] = []
    for x in picture.leaving(view):
        if not _pays(picture, view, x, load) or not (_is_below(x, load) or may_leave(x.group)):
            continue
        victims.append(x)
        over -= view.freed(x)
        if over <= 0 or len(victims) == len(view.loads):
            return victims
    return []


def _pays(picture: Picture, view: View, victim: Load, load: Load) -> bool:
    """Returns whether a victim has so much more slack that it can be absent.

    Beside other groups a switch costs the engine nothing: they run meanwhile. A tier above pays no price.
    """
    settings = picture.settings
    least_s = settings.preempt_share * load.group.ttft_s
    if _is_below(victim, load):
        return victim.rank > load.rank + least_s
    times = settings.away_margin if len(view.loads) > 1 else settings.idle_margin
    return victim.rank > load.rank + max(least_s, times * _away_s(picture, victim, load, view))


def _is_below(victim: Load, load: Load) -> bool:
    """Returns whether the victim's tier is a lower one."""
    return victim.group.model.config.terms.tier.level > load.group.model.config.terms.tier.level


def _away_s(picture: Picture, victim: Load, load: Load, view: View) -> float:
    """In seconds of the victim's rank."""
    return absence_s(picture.pool.estimates, victim, load, view.inst) * victim.group.scale.factor
