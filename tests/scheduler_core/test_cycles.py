"""The core makes no reference cycles: its process looks for them rarely, as each look takes long."""

from __future__ import annotations

import gc
import random

from small_world import small_world

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.commands import Command
from aegaeon_scheduler.core.domain import ModelName, Role
from aegaeon_scheduler.core.scheduler import Scheduler


def test_what_the_core_drops_is_freed_at_once() -> None:
    seen: list[tuple[float, ev.Event]] = []

    def observe(now: float, event: ev.Event, commands: list[Command]) -> None:
        seen.append((now, event))

    roles = [Role.UNIFIED, Role.UNIFIED, Role.PREFILL, Role.DECODE]
    world = small_world(roles=roles, models=12, observe=observe)
    rng = random.Random(0)
    for i in range(200):
        name = ModelName(f"m{rng.randrange(12)}")
        world.request(f"r{i}", name, rng.randrange(1, 60), rng.randrange(1, 100), 0.05 * i)
    world.run(until=40.0)
    core = Scheduler(world.scheduler.config)
    gc.collect()
    gc.disable()
    try:
        for now, event in seen:
            core.on(now, event)
        assert len(seen) > 1000
        assert gc.collect() == 0
    finally:
        gc.enable()
