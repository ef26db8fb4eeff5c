"""Models whose objectives differ: slack counts relative to what was promised, and what is kept of ranks still holds."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st
from small_world import small_world

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.commands import Command
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ModelName, Role, Slo
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import ALIKE, Objectives, Order
from aegaeon_scheduler.core.policies.slack.policy import SlackPolicy
from aegaeon_scheduler.core.slo import attainment
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
    assert objectives.changed([model(strict_s), model(loose_s)])
    scale = objectives.scale(model(max(strict_s, loose_s)))
    assert scale.rank_s(key) <= key
    assert (scale is ALIKE) is (strict_s == loose_s)
    assert later_s + scale.rank_s(key - later_s) >= scale.rank_s(key) - 1e-9


def test_the_shortest_objective_with_work_counts() -> None:
    objectives = Objectives(SlackSettings())
    strict, loose = model(2.0), model(32.0)
    assert objectives.changed([loose])
    assert objectives.scale(loose) is ALIKE
    assert objectives.changed([loose, strict])
    assert not objectives.changed([loose, strict])
    assert objectives.scale(strict).factor == 1.0
    assert objectives.scale(loose).factor == 0.125  # 16 times the time, to the power of 0.75
    assert objectives.scale(strict).late_s == objectives.scale(loose).rank_s(20.0) < 20.0
    assert objectives.changed([loose])
    assert objectives.scale(loose) is ALIKE


def test_a_strict_group_preempts_loose_ones_in_time_and_where_it_is_late_before_them() -> None:
    """One engine for one of them at a time. Loose ones have more slack than they need."""
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 1.2, kv_bytes_per_s=4e9)
    for ttft_s, count, length in ((2.0, 2, 800), (0.5, 60, 300)):
        config = SchedulerConfig(latency=latency, refine=False)
        world = small_world(roles=[Role.UNIFIED], models=3, slabs=130, config=config, ttfts=(60.0, 60.0, ttft_s))
        for i in range(count):
            world.request(f"loose {i}", ModelName(f"m{i % 2}"), 20, length, at=1.0 * i)
        strict = world.request("strict", ModelName("m2"), 20, 100, at=10.0)
        world.run(until=200.0)
        assert strict.finished
        assert strict.times[0] < max(2.0, 6 * ttft_s)
        loose = [client for client in world.clients.values() if client is not strict]
        assert attainment((c.times, Slo(60.0, 0.1), c.length) for c in loose).token > 0.99


def test_an_objective_that_is_edited_while_requests_are_open_counts_at_once() -> None:
    world = small_world(roles=[Role.UNIFIED] * 2, models=3, config=SchedulerConfig(), ttfts=(2.0, 60.0, 60.0))
    for i in range(60):
        world.request(f"r{i}", ModelName(f"m{i % 3}"), 20, 200, at=0.1 * i)
    world.run(until=4.0)
    policy = world.scheduler._policy
    assert isinstance(policy, SlackPolicy)
    groups = policy._table.groups.values()
    assert {group.scale.factor for group in groups if group.model.config.slo.ttft_s == 60.0} == {(2 / 60) ** 0.75}
    models = tuple(replace(row.config, slo=Slo(60.0, 0.1)) for row in world.scheduler._pool.models.values())
    world.feed(ev.CatalogChanged(models))
    world.run(until=5.0)
    assert groups
    assert all(group.scale is ALIKE for group in groups)


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
            if group._behind == group.standing.behind and now <= kept.rises_until:
                assert order.least >= kept.least - 1e-9
                compared += kept.until < kept.rises_until
            if group._behind == group.standing.behind and now <= kept.until:
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
