"""Fairness between models under overload: a model that floods the pool delays itself alone."""

from __future__ import annotations

from small_world import small_world

from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ModelName, Role
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
