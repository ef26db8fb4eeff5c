"""Verdicts on a simulated pool with the real core: loads, preemption, engines that die, and one that hangs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest
from scheduler_core.test_slack import Watched

from aegaeon_operator.kube.scheduler import facts
from aegaeon_operator.reconcile.cluster.facts import SchedulerFacts
from aegaeon_operator.reconcile.cluster.progress import ProgressMonitor
from aegaeon_proto.v1 import admin_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import InstanceId, Role
from aegaeon_scheduler.service.lag import SchedulerLoad
from aegaeon_scheduler.service.status import StatusView

CACHED = model_pb2.MODEL_PHASE_CACHED
SERVING_S, NOT_READY_S = 5.0, 1.0


class AllCached:
    """The catalog of a world whose nodes have all of its models (`specs`)."""

    def __init__(self, specs: Collection[str]) -> None:
        self.specs = specs

    def model(self, name: str) -> gateway_pb2.ModelStatus:
        return gateway_pb2.ModelStatus(phase=CACHED)

    def fetching(self) -> list[model_pb2.ModelState]:
        return []

    def adapters(self) -> list[gateway_pb2.ModelStatus]:
        return []


@dataclass
class Pool:
    """A pool that the operator looks at; `reports` has the time and the facts of each look that found something."""

    watched: Watched
    hung: set[InstanceId] = field(default_factory=set)
    reports: list[tuple[float, SchedulerFacts]] = field(default_factory=list)
    progress: ProgressMonitor = field(default_factory=ProgressMonitor)

    def __post_init__(self) -> None:
        world: Any = self.watched.world
        feed = world.feed

        def receive(event: ev.Event) -> None:
            """An engine that hangs sends heartbeats, and ends nothing."""
            ends = isinstance(event, (ev.TurnProgress, ev.CommandDone))
            if not (ends and event.instance in self.hung):
                feed(event)

        world.feed = receive
        connected, load = world.engines, lambda: SchedulerLoad(0.0, 0, 0)
        catalog: Any = AllCached(world.models)
        self.view = StatusView("p", world.scheduler, lambda: world.clock.now, catalog, connected, list, load)
        world.clock.at(0.0, self.look)

    def look(self) -> None:
        world = self.watched.world
        status = asyncio.run(self.view.status())
        catalog = [
            gateway_pb2.ModelStatus(spec=model_pb2.ModelSpec(name=name), phase=CACHED if world.engines else 0)
            for name in world.models
        ]
        answer = admin_pb2.AdminStatus(pool=status, catalog=gateway_pb2.CatalogStatus(models=catalog))
        seen = self.progress.of(facts(answer, 1 << 20), world.clock.now)
        reported = seen.stopped or seen.stuck or any(model.unanswered for model in seen.models.values())
        if reported:
            self.reports.append((world.clock.now, seen))
        again_s = NOT_READY_S if reported else min(SERVING_S, self.progress.again_in)
        world.clock.at(world.clock.now + again_s, self.look)


def pool(roles: list[Role], seed: int, per_s: float, until_s: float = 60.0, **options: Any) -> Pool:
    """Requests come at random, for models of which two fit an engine."""
    watched, chance, at = Watched(roles, **options), random.Random(seed), 0.0
    while (at := at + chance.expovariate(per_s)) < until_s:
        watched.ask(f"r{at}", chance.randrange(4), chance.choice((50, 2000)), chance.choice((1, 50, 400)), at=at)
    return Pool(watched)


@pytest.mark.parametrize(
    ("roles", "per_s", "first_s"),
    [
        ([Role.UNIFIED], 0.3, 12.0),
        ([Role.UNIFIED, Role.UNIFIED], 6.0, 0.0),
        ([Role.PREFILL, Role.DECODE, Role.DECODE], 4.0, 0.0),
    ],
    ids=("first steps that compile", "more than two engines can serve", "split, more than it can serve"),
)
def test_a_pool_that_serves_is_never_reported(roles: list[Role], per_s: float, first_s: float) -> None:
    seen = pool(roles, seed=1, per_s=per_s, slabs=250, first_s=first_s)
    world = seen.watched.world
    for at in (20.0, 40.0):
        world.clock.at(at, lambda: world.kill(InstanceId("e0")))
        world.clock.at(at + 3.0, lambda: world.start(InstanceId("e0")))
    world.run(80.0, idle=False)
    assert sum(len(client.times) for client in world.clients.values()) > 200
    assert seen.reports == []


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_engine_that_hangs_is_reported_before_ten_seconds_are_over(engines: int, seed: int) -> None:
    seen = pool([Role.UNIFIED] * engines, seed=seed, per_s=2.0, slabs=250)
    began = 30.0 + seed / 3
    seen.watched.world.clock.at(began, lambda: seen.hung.add(InstanceId("e0")))
    seen.watched.world.run(began + 25.0, idle=False)
    at, first = seen.reports[0]
    assert began < at < began + 10.0
    assert (first.stuck, first.stopped) == (("e0",), engines == 1)
    assert engines == 2 or any(model.unanswered for model in first.models.values())
