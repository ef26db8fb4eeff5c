"""Places waiting groups, most urgent first: where memory and time are free, else preempting groups with more slack.

The price of a preemption is seconds of copies, and of the engine where it idles meanwhile.
"""

from __future__ import annotations

from functools import cached_property

from aegaeon_scheduler.core.estimate import Estimates
from aegaeon_scheduler.core.policies.slack.engines import Free, Span, View
from aegaeon_scheduler.core.policies.slack.group import Group, Load
from aegaeon_scheduler.core.policies.slack.order import ENGINE_PRICE, PREEMPT_SHARE, Still, too_small
from aegaeon_scheduler.core.policies.slack.prefix import home
from aegaeon_scheduler.core.policies.slack.snapshot import Picture
from aegaeon_scheduler.core.policies.slack.weights import near
from aegaeon_scheduler.core.state import Instance


def absence_s(estimates: Estimates, victim: Load, comer: Load, inst: Instance) -> float:
    """Seconds that a victim is absent at least: its KV goes out, the other group comes in, first steps included if its
    model has not run here, and it comes back."""
    estimate = estimates.of(victim.group.model.name, inst.device)
    out_s = 2.0 * estimate.kv_s(victim.nbytes - victim.weights) + estimate.load_s(victim.weights)
    estimate, weights = estimates.of(comer.group.model.name, inst.device), inst.weights.get(comer.group.model.name)
    loaded = weights is not None and weights.ready and weights.unload is None
    copies_s = estimate.kv_s(comer.nbytes - comer.weights) + (0.0 if loaded else estimate.load_s(comer.weights))
    return out_s + (copies_s + new_s(estimates, comer, inst))


def new_s(estimates: Estimates, load: Load, inst: Instance) -> float:
    """Seconds that the first steps of a model take on an instance that it has not run on yet; else 0."""
    name = load.group.model.name
    return 0.0 if name in inst.tried else estimates.of(name, inst.device).first_s


FULL_UTIL = 0.9
"""utilization beyond which nothing is placed on an engine, but what is urgent"""
IDLE_MARGIN = 4.0
"""times its absence that a victim must have more slack where the engine is its own, and idles meanwhile"""
FIRST_WEIGHT = 3.0
"""times the first steps of a model that has run on another engine: what they count where a place is chosen, as a share
of TTFT. Nothing runs beside them"""


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
        before = len(picture.moves)
        _place(picture, Comer(picture, group, order.key, rest, free))
        free.placed(picture.moves[before:])
        if not free:
            break


class Comer:
    """A group that waits, and where it may go."""

    def __init__(self, picture: Picture, group: Group, key: float, rest: Still, free: Free) -> None:
        self.group = group
        self._picture = picture
        self._rest = rest
        self._only = rest.only
        self._home = None if rest.only is not None else home(picture.pool, picture.table, group, rest.node, key)
        self.span = free.span(rest.node)
        if self._only is None and picture.reach.limited:
            self.span = Span(self._reachable())

    def _reachable(self) -> list[View]:
        """Lists instances near its weights, else those that may read them from disk."""
        reach, name = self._picture.reach, self.group.model.name
        views = [view for view in self.span.views if view.free and self.may_go(view)]
        close = [view for view in views if near(self._picture.pool, name, view.inst)]
        return close or [view for view in views if reach.may_read(name, view.inst, self._rest.node)]

    @cached_property
    def _returns(self) -> bool:
        """True when an instance that it may go to has run its model, and has no group of it."""
        group, picture, node = self.group, self._picture, self._rest.node
        name, only = group.model.name, self._only
        return any(
            name in inst.tried
            and (only is None or inst is only)
            and (node is None or inst.node == node)
            and name not in picture.table.row(inst).models
            and group.may_go(inst)
            for inst in picture.pool.fleet.of(group.model).open
        )

    def presses(self) -> bool:
        """See Group.presses."""
        return self.group.presses(self._picture.now, self._picture.settings.late_slack_s)

    def visits(self, view: View, load: Load) -> float:
        """Seconds of first steps that it would take there, though its model has run where it may go; else 0."""
        seconds = new_s(self._picture.pool.estimates, load, view.inst)
        return seconds if seconds and self._returns else 0.0

    def may_go(self, view: View) -> bool:
        """Returns whether a group may be on this instance at all; what is there is another matter."""
        inst, group, picture = view.inst, self.group, self._picture
        if (self._only is not None and inst is not self._only) or group.model.name in view.models:
            return False
        if self._home not in (None, inst):
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
    if view.util + load.util <= FULL_UTIL or not view.loads or comer.presses():
        picture.admit(view, load, "room and time")
    return True  # with room but no time it waits for either


def _roomiest(picture: Picture, comer: Comer) -> tuple[View, Load] | None:
    """Returns the least busy that has room; first steps count as time that it takes of an engine."""
    best: tuple[float, float, int, View, Load] | None = None
    ttft_s = max(comer.group.model.config.slo.ttft_s, 1e-9)
    for view in comer.span.idle:
        if not view.free:
            continue
        if best is not None and view.util > best[0]:
            break  # all others are busier
        load = picture.load_on(comer.group, view.inst)
        if not _has_room(view, load) or not comer.may_go(view):
            continue
        first = FIRST_WEIGHT * comer.visits(view, load) / ttft_s
        util = view.util + load.util + first
        if first and view.loads and util > FULL_UTIL:
            continue
        score = (util, view.util, view.inst.order)
        if best is None or score < best[:3]:
            best = (*score, view, load)
    return None if best is None else best[3:]


def _has_room(view: View, load: Load) -> bool:
    return not (view.loads or view.lone) or view.over(load) <= 0


def _drop_lone(picture: Picture, comer: Comer) -> None:
    """Only copies fill every place that it may have: when it is urgent, or late, some of them are dropped."""
    views = [view for view in comer.span.views if view.free and comer.may_go(view)]
    if not views:
        return
    group = comer.group
    view = min(views, key=lambda v: (v.kept(group.model.name) + v.nbytes, v.inst.order))
    load = picture.load_on(group, view.inst)
    fits = not view.loads or view.nbytes + load.nbytes <= view.fits
    if view.lone and fits and (comer.presses() or group.late(picture.now)):
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
    least_s = PREEMPT_SHARE * comer.group.ttft_s
    for bound, order, view in comer.span.slack:
        if best is not None and bound > best[0]:
            break
        if not view.free:
            continue
        load = picture.load_on(comer.group, view.inst)
        if view.most <= load.rank + least_s or not comer.may_go(view):
            continue
        victims = _victims(picture, view, load, comer.visits(view, load))
        if victims:
            score = view.util - max(x.rank - _away_s(picture, x, load, view) for x in victims)
            if best is None or (score, order) < best[:2]:
                best = score, order, view, victims
    return None if best is None else best[2:]


def _victims(picture: Picture, view: View, load: Load, first_s: float) -> list[Load]:
    """Groups to evict, most slack first, until it fits; none when it would not or that costs more than it saves."""
    over = view.over(load)
    victims: list[Load] = []
    for x in picture.leaving(view):
        if not _pays(picture, view, x, load, first_s) or not (_is_below(x, load) or x.group.may_leave()):
            continue
        victims.append(x)
        over -= view.freed(x)
        if over <= 0 or len(victims) == len(view.loads):
            return victims
    return []


def _pays(picture: Picture, view: View, victim: Load, load: Load, first_s: float) -> bool:
    """Returns whether a victim has so much more slack that it can be absent; `first_s`: of its first steps.

    Beside other groups a switch costs the engine nothing: they run meanwhile. A tier above pays no price.
    """
    least_s = PREEMPT_SHARE * load.group.ttft_s
    if len(view.loads) == 1 and not _is_below(victim, load):
        least_s = max(least_s, IDLE_MARGIN * _away_s(picture, victim, load, view))
    return victim.rank > load.rank + least_s + ENGINE_PRICE * first_s


def _is_below(victim: Load, load: Load) -> bool:
    """Returns whether the victim's tier is a lower one."""
    return victim.group.model.config.terms.tier.level > load.group.model.config.terms.tier.level


def _away_s(picture: Picture, victim: Load, load: Load, view: View) -> float:
    """In seconds of the victim's rank."""
    return absence_s(picture.pool.estimates, victim, load, view.inst) * victim.group.scale.factor
