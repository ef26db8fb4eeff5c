"""Fairness between models under overload: a model that floods the pool delays itself alone."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import small_world

from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ModelName, Role
from aegaeon_scheduler.core.policies.slack import price as price_module
from aegaeon_scheduler.core.policies.slack import shares
from aegaeon_scheduler.core.policies.slack.order import TIER_SHARE, Kind, member
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.pool.world import World


def flooded(per_second: int) -> World:
    """Three models asked once a second each on one engine with room for two, and m0 asked so many times."""
    latency = LatencyConstants(c=2e-3, load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    config = SchedulerConfig(policy=SlackSettings(), latency=latency, hold_s=1e9, refine=False)
    world = small_world([Role.UNIFIED], slabs=250, config=config)
    for i in range(30):
        for m in (1, 2, 3):
            world.request(f"r{i}-{m}", ModelName(f"m{m}"), 50, 40, at=0.1 + i + 0.1 * m)
    for i in range(30 * per_second):
        world.request(f"f{i}", ModelName("m0"), 50, 40, at=0.1 + i / per_second)
    world.run(400)
    return world


def tokens_on_time(world: World, name: str) -> float:
    mine = [c for c in world.clients.values() if c.model == name]
    return attainment((c.times, world.models[c.model][1], c.length) for c in mine).token


def test_a_model_asked_twenty_times_as_often_makes_no_other_late():
    calm, flood = flooded(1), flooded(20)
    assert [tokens_on_time(calm, f"m{m}") for m in range(4)] == [1.0] * 4
    assert tokens_on_time(flood, "m0") < 0.5
    assert min(tokens_on_time(flood, f"m{m}") for m in (1, 2, 3)) > 0.99


def beside_a_hot_model(monkeypatch: pytest.MonkeyPatch, greed_share: float) -> World:
    """Four engines; m0 is asked 32 times a second with prompts of 2,000 tokens, twelve others 0.3 times each."""
    draw = Random(3)
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    monkeypatch.setattr(shares, "GREED_SHARE", greed_share)
    monkeypatch.setattr(shares, "GREED_FREE", 3.0)
    config = SchedulerConfig(latency=latency, hold_s=1e9, refine=False)
    world = small_world([Role.UNIFIED] * 4, models=13, slabs=700, host_slabs=8000, config=config)
    for i in range(640):
        world.request(f"hot{i}", ModelName("m0"), 2000, 60, at=0.1 + i / 32)
    for i in range(72):
        world.request(f"r{i}", ModelName(f"m{1 + draw.randrange(12)}"), 50, 80, at=draw.uniform(0.1, 20.0))
    world.run(300)
    return world


def others_on_time(world: World) -> float:
    others = [c for c in world.clients.values() if c.model != "m0"]
    return attainment((c.times, world.models[c.model][1], c.length) for c in others).token


def test_where_not_all_can_be_in_time_a_model_that_holds_all_engines_is_late_before_those_that_ask_for_little(
    monkeypatch: pytest.MonkeyPatch,
):
    default = beside_a_hot_model(monkeypatch, shares.GREED_SHARE)
    assert all(client.finished for client in default.clients.values())
    late = 1.0 - others_on_time(default)
    assert late < 0.01
    assert 1.0 - others_on_time(beside_a_hot_model(monkeypatch, 0.0)) > 5 * late


def greeds(groups: dict[int, int], engines: int) -> dict[ModelName, float]:
    """What a pass finds, of models that have so many groups."""
    world = small_world([Role.UNIFIED] * engines, models=8)
    world.run(0.01)
    policy = world.scheduler._policy
    pool, table = policy._pool, policy._table
    for model, count in groups.items():
        for _ in range(count):
            table.create(pool.models[ModelName(f"m{model}")], Kind.WHOLE)
    policy._shares.update(pool.now)
    return {model.name: standing.greed for model, standing in table.standings.items() if standing.greed}


def test_a_model_is_greedy_by_the_engines_that_it_holds_beside_others():
    assert greeds({0: 8}, 8) == {}  # no other model is asked
    assert greeds({0: 5, 1: 5}, 4) == {}
    assert greeds({0: 8} | dict.fromkeys(range(1, 8), 1), 8) == {"m0": 1.0 - 5 / 8}


@given(st.dictionaries(st.integers(0, 7), st.integers(1, 12), min_size=1), st.integers(1, 6))
def test_greed_rises_with_what_a_model_holds_and_stays_below_a_tier(groups, engines):
    found = greeds(groups, engines)
    by_groups = [found.get(ModelName(f"m{m}"), 0.0) for m in sorted(groups, key=lambda m: groups[m])]
    assert by_groups == sorted(by_groups)
    assert all(0.0 <= greed < 1.0 for greed in by_groups)
    assert shares.GREED_SHARE < TIER_SHARE


@pytest.mark.parametrize(("greed", "admission", "later"), [(0.0, "none", 0), (0.5, "none", 1), (0.5, "feasible", 0)])
def test_a_very_long_prompt_of_a_greedy_model_puts_its_request_later(
    greed: float, admission: str, later: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(price_module, "LITTLE_SHARE", 0.02)
    world = small_world([Role.UNIFIED], models=2, config=SchedulerConfig(refine=False, admission=admission))
    world.run(0.01)
    policy = world.scheduler._policy
    policy._table.standing(policy._pool.models[ModelName("m0")]).greed = greed
    world.request("long", ModelName("m0"), 3000, 5, at=0.1)
    world.request("short", ModelName("m0"), 30, 5, at=0.1)
    world.run(0.11)
    sequences = policy._pool.sequences.values()
    seen = {seq.id.request: member(seq).due_from - seq.promised_from for seq in sequences}
    assert (seen["long"] > 0.0) == bool(later)
    assert seen["short"] == 0.0
