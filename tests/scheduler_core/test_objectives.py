"""Models whose objectives differ: slack counts relative to what was promised, and what is kept of ranks still holds."""

from __future__ import annotations

import random
from math import inf

from hypothesis import given
from hypothesis import strategies as st
from small_world import small_world

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.commands import Command
from aegaeon_scheduler.core.config import SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ModelName, Role, Slo
from aegaeon_scheduler.core.policies.slack.group import Group, Order
from aegaeon_scheduler.core.policies.slack.objectives import ALIKE, Objectives
from aegaeon_scheduler.core.policies.slack.policy import SlackPolicy
from aegaeon_scheduler.core.state import Model, ModelConfig

TTFTS = (2.0, 30.0, 8.0)
ttft = st.floats(0.05, 600.0)


def model(ttft_s: float) -> Model:
    return Model(ModelConfig(ModelName(f"m{ttft_s}"), Slo(ttft_s, 0.1)), 0)


@given(ttft, ttft, st.floats(0.0, 600.0), st.floats(0.0, 60.0))
def test_slack_counts_for_no_more_than_it_is_and_a_rank_never_falls_with_the_time(
    strict_s: float, loose_s: float, key: float, later_s: float
) -> None:
    objectives = Objectives(SlackSettings())
    for row in (model(strict_s), model(loose_s)):
        objectives.add(row)
    assert objectives.changed()
    scale = objectives.scale(model(max(strict_s, loose_s)))
    assert scale.rank_s(key) <= key
    assert (scale is ALIKE) is (strict_s == loose_s)
    assert later_s + scale.rank_s(key - later_s) >= scale.rank_s(key) - 1e-9


def test_the_shortest_objective_with_work_counts() -> None:
    objectives = Objectives(SlackSettings())
    strict, loose = model(2.0), model(32.0)
    objectives.add(loose)
    assert objectives.changed()
    assert objectives.scale(loose) is ALIKE
    objectives.add(strict)
    assert objectives.changed()
    assert not objectives.changed()
    assert objectives.scale(strict) is ALIKE
    assert objectives.scale(loose).factor == 0.125  # 16 times the time, to the power of 0.75
    objectives.drop(strict)
    assert objectives.changed()
    assert objectives.scale(loose) is ALIKE


def anew(group: Group, now: float, settings: SlackSettings) -> Order:
    """What it would be if nothing of it were kept; all stays as it is."""
    kept = group._order, group._behind
    group._order = Order(inf, inf, inf)
    order = group.order(now, settings)
    group._order, group._behind = kept
    return order


def test_what_groups_keep_of_their_ranks_holds_while_objectives_come_and_go() -> None:
    settings, shortest, compared = SlackSettings(), set(), 0

    def compare(now: float, event: ev.Event, commands: list[Command]) -> None:
        nonlocal compared
        policy = world.scheduler._policy
        assert isinstance(policy, SlackPolicy)
        shortest.add(policy._table._objectives.least_s)
        for group in policy._table.groups.values():
            kept, order = group._order, anew(group, now, settings)
            if group._behind == group.model.behind and now <= kept.rises_until:
                assert order.least >= kept.least - 1e-9
                compared += kept.until < kept.rises_until
            if group._behind == group.model.behind and now <= kept.until:
                assert abs(order.rank - kept.rank) < 1e-9

    config = SchedulerConfig(policy=settings)
    world = small_world(roles=[Role.UNIFIED] * 2, config=config, models=12, ttfts=TTFTS)
    world.observe = compare
    rng = random.Random(0)
    for i in range(200):
        name = ModelName(f"m{rng.randrange(12)}")
        world.request(f"r{i}", name, rng.randrange(1, 60), rng.randrange(1, 200), rng.uniform(0.0, 12.0))
    world.run(until=60.0)
    assert shortest >= {2.0, 30.0}
    assert compared > 1000
