"""Tiers and weights under overload: which model is late first, and no change where all are alike."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ModelName, Role, Terms, Tier
from aegaeon_scheduler.core.log import LogWriter
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.pool.world import World

MODELS = [ModelName(f"m{i}") for i in range(4)]
LATENCY = LatencyConstants(c=2e-3, load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
CONFIG = SchedulerConfig(policy=SlackSettings(), latency=LATENCY, hold_s=1e9, refine=False)


def pool(
    terms: list[Terms],
    per_second: list[float],
    seconds: int = 40,
    observe: Callable[[float, ev.Event, list[cmd.Command]], None] = lambda now, event, commands: None,
) -> World:
    """One engine with room for two of four models, each asked so often for so long."""
    given = dict(zip(MODELS, terms, strict=False))
    world = small_world([Role.UNIFIED], config=CONFIG, observe=observe, terms=given)
    for name, rate in zip(MODELS, per_second, strict=True):
        for i in range(int(seconds * rate)):
            world.request(f"{name}-{i}", name, 50, 40, at=0.1 + i / rate)
    world.run(600)
    return world


def decided(terms: list[Terms]) -> str:
    """The log of ten seconds of overload, without the terms."""
    out = io.StringIO()
    pool(terms, [7.0] * 4, 10, LogWriter(out, CONFIG, "test").write)
    return "".join(line for line in out.getvalue().splitlines(True) if "CatalogChanged" not in line)


def tokens_on_time(world: World, *names: ModelName) -> float:
    mine = [c for c in world.clients.values() if c.model in names]
    return attainment((c.times, world.models[c.model][1], c.length) for c in mine).token


def decoded_until(world: World, name: ModelName, end_s: float) -> int:
    """Tokens that came before the end."""
    return sum(c.arrival + x < end_s for c in world.clients.values() if c.model == name for x in c.times)


def test_under_overload_the_upper_tier_is_on_time_and_the_lower_one_is_late():
    alike = pool([], [7.0] * 4)
    assert tokens_on_time(alike, MODELS[0]) < 0.9  # with nothing said of who matters, some model is late
    world = pool([Terms(Tier.INTERACTIVE)], [7.0] * 4)
    assert tokens_on_time(world, MODELS[0]) >= 0.99
    assert tokens_on_time(world, *MODELS[1:]) < 0.9


def test_each_tier_is_late_before_the_one_above():
    terms = [Terms(Tier.INTERACTIVE), Terms(), Terms(Tier.BATCH), Terms(Tier.BATCH)]
    world = pool(terms, [6.0] * 4)
    assert min(tokens_on_time(world, name) for name in MODELS[:2]) >= 0.99
    assert tokens_on_time(world, *MODELS[2:]) < 0.9


def test_a_lower_tier_is_in_time_where_there_is_time_for_all():
    world = pool([Terms(Tier.INTERACTIVE), Terms(Tier.BATCH), Terms(Tier.BATCH), Terms(weight=5)], [0.5] * 4)
    assert tokens_on_time(world, *MODELS) == 1.0


@pytest.mark.parametrize("terms", [Terms(Tier.BATCH), Terms(weight=7)])
def test_models_that_are_all_alike_are_served_as_those_without_terms(terms: Terms):
    assert decided([terms] * 4) == decided([])


def test_engine_time_is_shared_by_weight_and_no_model_starves():
    alike = pool([], [9.0] * 4)
    weighted = pool([Terms(), Terms(), Terms(weight=3), Terms()], [9.0] * 4)
    had, got = ([decoded_until(world, name, 40.0) for name in MODELS] for world in (alike, weighted))
    assert min(had) < 0.15 * max(had)
    assert got[2] == max(got) > 1.2 * sorted(got)[-2]
    assert min(got) > 0.35 * max(got)


def test_a_model_withdrawn_and_added_again_starts_with_no_debt():
    world = pool([Terms(weight=3)], [2.0] * 4, seconds=5)
    all_of_them = ev.CatalogChanged(tuple(model.config for model in world.scheduler._pool.models.values()))
    world.request("last", MODELS[0], 50, 400, at=600.1)
    world.run(601)
    world.feed(ev.CatalogChanged(all_of_them.models[1:]))
    world.request("other", MODELS[1], 50, 40, at=601.2)
    world.run(602)
    world.feed(all_of_them)
    world.request("again", MODELS[1], 50, 40, at=602.1)
    world.run(700)
    assert not world.any_open()
