"""One scheduler for a thousand models: what share of a core the brain takes, and how long ticks and arrivals take.

As in benchmarks/core.py a simulated pool is recorded and fed to a fresh scheduler; CPU time of the thread, after the
first seconds, in which all models begin at once. Run: python -m benchmarks.size [NAME ...]
"""

from __future__ import annotations

import gc
import sys
import time
from collections import defaultdict
from dataclasses import dataclass

from benchmarks.core import Recorded, Size, quantile, record
from benchmarks.report import Row, report

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import Role
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_scheduler.interpreter import relax

ENGINES = 256
WARM_S = 12.0  # of virtual time, before which nothing counts
TICK_MS, ARRIVAL_US = 10.0, 200.0


@dataclass(frozen=True)
class Point:
    """A size, and the share of a core that its scheduler may take."""

    name: str
    size: Size
    share: float


POINTS = (
    Point("1,000 models x 256 engines, 0.5/s", Size(1000, 0.5, 20.0, 8), 0.35),
    Point("3,000 models x 256 engines, 0.1/s", Size(3000, 0.1, 20.0, 8), 0.5),
)


def feed(scheduler: Scheduler, events: list[Recorded]) -> dict[type[ev.Event], list[float]]:
    """Seconds of each event after the first ones, by kind. What was recorded is no business of the collector's, which
    is set as in the scheduler's process."""
    relax()
    seconds: dict[type[ev.Event], list[float]] = defaultdict(list)
    gc.collect()
    gc.freeze()
    for e in events:
        began = time.thread_time()
        scheduler.on(e.at, e.event)
        if e.at >= WARM_S:
            seconds[type(e.event)].append(time.thread_time() - began)
    gc.unfreeze()
    return seconds


def rows(point: Point) -> list[Row]:
    """The figures of one size."""
    config, events = record("slack", [Role.UNIFIED] * ENGINES, point.size)
    scheduler = Scheduler(config)
    seconds = feed(scheduler, events)
    span_s = events[-1].at - WARM_S
    count = sum(map(len, seconds.values()))
    name = point.name
    return [
        Row(f"{name}: events per second", count / span_s, "events/s"),
        Row(f"{name}: core", sum(map(sum, seconds.values())) / span_s, "of a core", point.share, "<="),
        Row(f"{name}: tick, p99", quantile(seconds[ev.Tick], 0.99) * 1e3, "ms", TICK_MS, "<="),
        Row(f"{name}: arrival, p99", quantile(seconds[ev.Submitted], 0.99) * 1e6, "us", ARRIVAL_US, "<="),
        Row(f"{name}: report of a turn, p50", quantile(seconds[ev.TurnProgress], 0.5) * 1e6, "us"),
        Row(f"{name}: copy of the tables for the status", _status_s(scheduler, events[-1].at) * 1e3, "ms"),
    ]


def _status_s(scheduler: Scheduler, now: float) -> float:
    began = time.thread_time()
    scheduler.snapshot(now)
    return time.thread_time() - began


def main() -> int:
    """Both sizes, or those whose name begins as is said."""
    wanted = tuple(sys.argv[1:]) or ("",)
    chosen = [point for point in POINTS if point.name.startswith(wanted)]
    return 0 if report("size", [row for point in chosen for row in rows(point)], short=chosen != list(POINTS)) else 1


if __name__ == "__main__":
    sys.exit(main())
