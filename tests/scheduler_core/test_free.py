"""The search of a pass ends early; it finds what a search of all instances finds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from small_world import interpreted, small_world

from aegaeon_scheduler.core.config import SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ModelName, Role
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack import group, place
from aegaeon_scheduler.core.policies.slack.engines import Free, Span, View
from aegaeon_scheduler.core.policies.slack.group import Load
from aegaeon_scheduler.core.policies.slack.place import Picture

Found = tuple[View, Load] | tuple[View, list[Load]] | None


def all_victims(picture: Picture, comer: place.Comer) -> Found:
    """Every free instance, one after the other."""
    found = []
    for view in (v for v in comer.span.views if v.free and v.loads and comer.may_go(v)):
        load = picture.load_on(comer.group, view.inst)
        victims = place._victims(picture, view, load, comer.visits(view, load))
        if victims:
            score = view.util - max(x.rank - place._away_s(picture, x, load, view) for x in victims)
            found.append((score, view.inst.order, view, victims))
    return min(found, key=lambda x: x[:2])[2:] if found else None


def all_room(picture: Picture, comer: place.Comer) -> Found:
    """The same for those with room."""
    found = []
    for view in (v for v in comer.span.views if v.free and comer.may_go(v)):
        load = picture.load_on(comer.group, view.inst)
        first = place.FIRST_WEIGHT * comer.visits(view, load) / comer.group.model.config.slo.ttft_s
        util = view.util + load.util + first
        if place._has_room(view, load) and not (first and view.loads and util > place.FULL_UTIL):
            found.append((util, view.util, view.inst.order, view, load))
    return min(found, key=lambda x: x[:3])[3:] if found else None


@interpreted
@pytest.mark.parametrize(("seed", "first_s"), [(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.1)])
def test_a_pass_finds_what_a_search_of_all_instances_finds(
    seed: int, first_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"room": 0, "victims": 0}
    best, roomiest = place._best_victims, place._roomiest

    def victims(picture: Picture, comer: place.Comer) -> tuple[View, list[Load]] | None:
        chosen = best(picture, comer)
        assert chosen == all_victims(picture, comer)
        found["victims"] += chosen is not None
        return chosen

    def room(picture: Picture, comer: place.Comer) -> tuple[View, Load] | None:
        chosen = roomiest(picture, comer)
        assert chosen == all_room(picture, comer)
        found["room"] += chosen is not None
        return chosen

    for module in (group, place):
        monkeypatch.setattr(module, "PREEMPT_SHARE", 0.0)
    monkeypatch.setattr(place, "_best_victims", victims)
    monkeypatch.setattr(place, "_roomiest", room)
    rng = random.Random(seed)
    config = SchedulerConfig(policy=SlackSettings(min_stay_s=0.0))
    world = small_world(roles=[Role.UNIFIED] * 4, config=config, models=12, first_s=first_s)
    for i in range(300):
        name = ModelName(f"m{rng.randrange(12)}")
        world.request(f"r{i}", name, rng.randrange(1, 60), rng.randrange(1, 80), rng.uniform(0.0, 12.0))
    world.run(until=60.0)
    assert found["room"] > 10
    assert found["victims"] > 3


@interpreted
def test_a_pass_looks_at_engines_again_where_a_group_was_placed_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each of a thousand groups that wait in vain costs a look at all engines."""
    counts: Counter[str] = Counter()
    look, placed = Span.look, Free.placed

    def counted(span: Span) -> None:
        counts["looks"] += 1
        look(span)

    def checked(free: Free, moves: Iterable[Move]) -> None:
        before = counts["looks"]
        placed(free, moves)
        nodes = {move.instance.node for move in moves if move.instance is not None}
        counts["groups"] += 1
        counts["placed"] += len(nodes)
        assert counts["looks"] - before == 2 * len(nodes)  # all engines, and those of the node
        for span in free._spans.values():
            fresh = Span(span.views)
            assert (span.room, span.most) == (fresh.room, fresh.most)

    monkeypatch.setattr(Span, "look", counted)
    monkeypatch.setattr(Free, "placed", checked)
    rng = random.Random(5)
    world = small_world(roles=[Role.UNIFIED] * 4, models=12, nodes=2)
    for i in range(300):
        name = ModelName(f"m{rng.randrange(12)}")
        world.request(f"r{i}", name, rng.randrange(1, 60), rng.randrange(1, 80), rng.uniform(0.0, 3.0))
    world.run(until=60.0)
    assert counts["groups"] > 2 * counts["placed"] > 40
