"""Parts of rules of policy slack, left out by functions that stand in for the policy's own. Small scenes show what each
is for (tests/scheduler_core/test_rules.py); loads of benchmarks.loads only where one is named.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from aegaeon_scheduler.core.policies.slack import (
    admission,
    balance,
    engines,
    group,
    order,
    place,
    placement,
    policy,
    prompts,
    shares,
    snapshot,
    turns,
    weights,
)

Patch = tuple[Any, str, Any]
"""owner, its attribute, what stands there for a while"""


def always(value: object) -> Callable[..., object]:
    return lambda *args, **named: value


def _first_due(ready: list[Any], *_: float) -> list[Any]:
    return sorted(ready, key=order.due)


def _one_text(of: prompts.Prompts, inst: Any, comer: group.Group, first: Any, now: float) -> tuple[Any, ...]:
    return (first,)


def _usual_steps(of: turns.Turns, *_: object) -> int:
    return of._settings.quantum_steps


_round = turns.Turns._round


def _round_of_all(of: turns.Turns, each: group.Group, now: float) -> tuple[int, float]:
    kind, at = _round(of, each, now)
    return (1, each.served) if kind == 2 else (kind, at)


def _hot_anywhere(of: placement.Arrivals, full: group.Group, util: float) -> bool:
    """However many groups the model has."""
    taken = [g.inst for g in of._table.of(full.model)]
    free = [i for i in of._places(full) if i not in taken]
    return of._full(full, util) and any(of._table.view(i).util <= order.HOT_UTIL for i in free)


def _first_room(picture: snapshot.Picture, comer: place.Comer) -> tuple[engines.View, group.Load] | None:
    """However busy it is."""
    for view in comer.span.views:
        load = picture.load_on(comer.group, view.inst)
        if view.free and place._has_room(view, load) and comer.may_go(view):
            return view, load
    return None


def _any_victims(picture: snapshot.Picture, comer: place.Comer) -> tuple[engines.View, list[group.Load]] | None:
    """Chooses the first engine where there are any."""
    for view in comer.span.views:
        load = picture.load_on(comer.group, view.inst)
        if view.free and view.loads and comer.may_go(view):
            victims = place._victims(picture, view, load, comer.visits(view, load))
            if victims:
                return view, victims
    return None


def _calm(picture: snapshot.Picture, view: engines.View) -> list[group.Load]:
    """None with a prompt just begun."""
    stay_s = picture.settings.min_stay_s
    loads = [x for x in view.loads if picture.now - x.group.since >= stay_s and x.group.may_leave()]
    return sorted(loads, key=lambda x: (-x.rank, x.group.number))


_may_leave = group.Group.may_leave


def _leaves_begun(of: group.Group, begun: bool = False) -> bool:
    return _may_leave(of, begun=True)


def _idle_engine(view: engines.View) -> None:
    """Nothing is loaded while others run."""
    inst = view.inst
    view.free = not (inst.wanted or inst.book.loads or inst.incoming or inst.turns)


def _even_tiers(of: turns.Turns, orders: list[Any], now: float) -> list[Any]:
    return orders


def _undeferred_place(seq: Any) -> tuple[bool, int, int]:
    return False, seq.terms.tier.level, order.member(seq).queue_place


def _first_come(waiting: Any, ranked: bool) -> Any:
    return waiting.values()


def _unlearned(of: admission.Gate, now: float) -> None:
    """The share stays as it is."""


def _one_queue(of: prompts.Prompts, waiting: group.Group) -> tuple[Any, ...]:
    return (waiting.prompts,)


LEAST_BUSY = "the least busy place (rule 7)"
SMALLER: dict[str, list[Patch]] = {
    "those in time first in a full batch (rule 1)": [(turns, "in_places", _first_due)],
    "texts of a model are computed together (rule 1)": [(prompts.Prompts, "_together", _one_text)],
    "longer turns while the scheduler is late (rule 1)": [(turns.Turns, "_steps", _usual_steps)],
    "rounds (rule 2)": [(turns.Turns, "_round", always((0, 0.0)))],
    "deferred groups come last (rules 2, 13)": [(turns.Turns, "_round", _round_of_all)],
    "newcomers look whether there is time (rule 4)": [(turns.Turns, "_has_time", always(True))],
    "members leave an engine that is too small (rule 5)": [(balance, "_shrink", always(None))],
    "no more groups than engines (rule 6)": [(placement.Arrivals, "_hot", _hot_anywhere)],
    LEAST_BUSY: [(place, "_roomiest", _first_room)],
    "the engine whose victim has most slack (rule 7)": [(place, "_best_victims", _any_victims)],
    "a tier above preempts beside prompts (rule 8)": [(snapshot.Picture, "leaving", _calm)],
    "between equals prompts are worked off (rule 8)": [(group.Group, "may_leave", _leaves_begun)],
    "prefetch (rule 9)": [(engines.View, "take_loads", _idle_engine)],
    "a group goes where its weights are (rule 11)": [(place, "near", always(True))],
    "a disk serves one load at a time (rule 11)": [
        (weights.Reach, "comes", always(None)),
        (weights.Reach, "_reads", always(False)),
    ],
    "loads past host memory (rule 11)": [(policy, "past_host", always(False))],
    "tiers are eased while all have time (rule 12)": [(turns.Turns, "_eased", _even_tiers)],
    "weights (rule 12)": [(shares.Shares, "_excess", always(0.0))],
    "greed (rule 12)": [(shares, "GREED_SHARE", 0.0)],
    "a deferred prompt begins last (rule 13)": [(order, "_place", _undeferred_place)],
    "a deferred group takes no time (rule 13)": [(group.Group, "deferred", always(False))],
    "priorities (rule 13)": [(prompts, "in_order", _first_come), (turns, "in_order", _first_come)],
    "a limit of time soon (rule 14)": [(admission.Demand, "within", always(0.0))],
    "a limit of loads (rule 14)": [(admission.Demand, "copies_s", always(-inf))],
    "the share is learned (rule 14)": [(admission.Gate, "_learn", _unlearned)],
    "warm set (rule 15)": [(weights.Warm, "moves", always([]))],
    "idle weights go by what is expected (rule 15)": [(weights.Warm, "order", lambda of, idle, now: idle)],
    "fair clock (rule 16)": [(prompts.Prompts, "_greedy", always(False))],
    "places by tenant (rule 16)": [(turns, "in_places", lambda ready, *_: sorted(ready, key=order.due))],
    "who has most leaves first (rule 16)": [(balance, "due_last", lambda of: sorted(of, key=order.due, reverse=True))],
    "late ones of a long queue wait (rule 16)": [(prompts.Prompts, "_has_long_queue", always(False))],
    "who waits for no others' prompts joins one that runs (rule 16)": [
        (placement.Arrivals, "_crowded_out", always(False))
    ],
    "tenants of upper tiers first (rule 16)": [(prompts.Prompts, "_by_tier", _one_queue)],
    "a prompt joins its prefix (rule 17)": [(placement.Arrivals, "_home", always(None))],
    "idle weights by prefix (rule 17)": [(placement, "pull", always(0.0))],
    "a home (rule 17)": [(place, "home", always(None))],
}
