"""The brain's speed at 100 models and 32 instances: events per second on one core, time per report, per pool pass.

The events are those of a simulated pool under load, recorded once and fed to a fresh scheduler, so that only
`Scheduler.on` is on the clock (CPU time of the thread: other processes do not count). Run: python -m benchmarks.core
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from benchmarks.report import Row, report

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, policy_settings
from aegaeon_scheduler.core.domain import Footprint, InstanceId, KvShape, ModelName, Role, Slo
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_simulator.engine.spec import EngineSpec, Served
from aegaeon_simulator.pool.world import World

INSTANCES = 32
SLAB_BYTES = 32 << 20
REPORTS = (ev.TurnProgress, ev.CommandDone, ev.CommandFailed, ev.CommandSkipped, ev.MemoryReported)
PASSES = (ev.Submitted, ev.Tick)


@dataclass(frozen=True)
class Size:
    """So many models, each asked at random times so often (requests per second), for so long (virtual seconds)."""

    models: int = 100
    rate: float = 0.25
    seconds: float = 25.0
    node_engines: int = 32


@dataclass(frozen=True)
class Recorded:
    """One event of the run: when, what."""

    at: float
    event: ev.Event


def _served(i: int) -> Served:
    kind = i % 10
    if kind < 6:
        nbytes, kv, shape = 15_230_000_000, 57_344, "7b"
        latency = LatencyConstants(8.38e-3, 8.76e-8, 9.36e-5, 6.58e-3, 2.139e-5, 2.37e-10, 0.0138, 51.2e9, 50e9)
    elif kind < 8:
        nbytes, kv, shape = 17_660_000_000, 98_304, "9b"
        latency = LatencyConstants(1.162e-2, 1.57e-7, 8.96e-5, 9.39e-3, 2.655e-5, 0.0, 0.0186, 51.2e9, 50e9)
    else:
        nbytes, kv, shape = 26_030_000_000, 819_200, "13b"
        latency = LatencyConstants(1.278e-2, 3.66e-7, 1.321e-4, 9.32e-3, 4.184e-5, 3.35e-10, 0.0195, 51.2e9, 50e9)
    footprint = Footprint(nbytes, -(-nbytes // SLAB_BYTES), KvShape(shape), kv * 16, 16, 8192)
    return Served(footprint, latency)


def pool(size: Size, roles: list[Role]) -> tuple[dict[ModelName, tuple[Served, Slo]], list[EngineSpec]]:
    """The models, and engines of 72 GB."""
    models = {ModelName(f"model-{i:03}"): (_served(i), Slo(10.0, 0.1)) for i in range(size.models)}
    slabs = 72_000_000_000 // SLAB_BYTES
    specs = [
        EngineSpec(
            InstanceId(f"engine-{i:02}"), role, slabs, 8 * slabs, SLAB_BYTES, 64, node=f"node-{i // size.node_engines}"
        )
        for i, role in enumerate(roles)
    ]
    return models, specs


def arrivals(size: Size, names: Iterable[ModelName]) -> Iterator[tuple[ModelName, int, int, float]]:
    """Model, tokens of the prompt and of the answer, and when."""
    rng = random.Random(0)
    for name in names:
        at = rng.expovariate(size.rate)
        while at < size.seconds:
            prompt = min(4000, int(rng.lognormvariate(6.2, 0.9)) + 4)
            yield name, prompt, min(1500, int(rng.lognormvariate(5.4, 0.8)) + 1), at
            at += rng.expovariate(size.rate)


def record(policy: str, roles: list[Role], size: Size) -> tuple[SchedulerConfig, list[Recorded]]:
    """Simulate the pool once and keep its events."""
    models, specs = pool(size, roles)
    seen: list[Recorded] = []
    config = SchedulerConfig(policy=policy_settings(policy))
    world = World(
        config, models, specs, 0.0005, 0.5, observe=lambda now, event, commands: seen.append(Recorded(now, event))
    )
    for i, (name, prompt, length, at) in enumerate(arrivals(size, models)):
        world.request(f"r{i}", name, prompt, length, at)
    world.run(until=size.seconds + 5.0)
    return config, seen


def feed(config: SchedulerConfig, events: list[Recorded]) -> tuple[float, list[tuple[ev.Event, float]]]:
    """Feed a fresh scheduler; total seconds without per-event clocks, then each event's own seconds."""
    gc.collect()
    scheduler = Scheduler(replace(config))
    began = time.thread_time()
    for e in events:
        scheduler.on(e.at, e.event)
    total = time.thread_time() - began
    scheduler = Scheduler(replace(config))
    each: list[tuple[ev.Event, float]] = []
    for e in events:
        t = time.thread_time()
        scheduler.on(e.at, e.event)
        each.append((e.event, time.thread_time() - t))
    return total, each


def quantile(values: list[float], q: float) -> float:
    """The value below which this share lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def rows(name: str, policy: str, roles: list[Role]) -> list[Row]:
    """The figures for one policy on one mix of roles."""
    config, events = record(policy, roles, Size())
    total, each = feed(config, events)
    reports = [s for e, s in each if isinstance(e, REPORTS)]
    passes = [s for e, s in each if isinstance(e, PASSES)]
    return [
        Row(f"{name}: events", len(events), "events"),
        Row(f"{name}: events per second on one core", len(events) / total, "events/s", 20_000.0, ">="),
        Row(f"{name}: report, p50", quantile(reports, 0.5) * 1e6, "us"),
        Row(f"{name}: report, p99", quantile(reports, 0.99) * 1e6, "us", 200.0, "<="),
        Row(f"{name}: pass over the pool (arrival), p99", quantile(passes, 0.99) * 1e3, "ms", 2.0, "<="),
        Row(f"{name}: pass over the pool (arrival), max", max(passes) * 1e3, "ms"),
    ]


def main() -> int:
    """Both layouts that the issue names, and our policy on its own."""
    split = [Role.PREFILL] * 12 + [Role.DECODE] * 20
    unified = [Role.UNIFIED] * INSTANCES
    result = [
        *rows("12 prefill + 20 decode", "paper", split),
        *rows("32 unified", "paper", unified),
        *rows("slack, 32 unified", "slack", unified),
    ]
    return 0 if report("core", result) else 1


if __name__ == "__main__":
    sys.exit(main())
