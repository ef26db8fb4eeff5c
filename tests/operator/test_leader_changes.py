"""Statuses and Events while leaders of a pool change: nothing is said of a change by which nothing was lost."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_objects import KEY, PLATFORM, gpu_pool, model_pool
from operator_state import broken, pod
from tests.operator.scripted import SILENT, scripted
from tests.operator.test_zero import Kept

from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.facts import EngineFacts, ModelFacts, SchedulerFacts, Wait
from aegaeon_operator.reconcile.cluster.names import labels
from aegaeon_operator.reconcile.cluster.progress import SILENT_S
from aegaeon_operator.reconcile.cluster.retained_facts import KEPT_S, RetainedFacts

Json = dict[str, Any]
ENGINES = tuple(EngineFacts(f"pool-engine-{n}", "unified", True, 0, 0.0) for n in range(2))
OLD = SchedulerFacts("old", {"llama": ModelFacts("cached")}, ENGINES, term=7)
STARTS = SchedulerFacts("new", standby=True)
BARE = SchedulerFacts("new", {"llama": ModelFacts()}, ENGINES[:1], term=8)
NEW = SchedulerFacts("new", {"llama": ModelFacts("cached")}, ENGINES, term=8)
OLD_POD = "10.0.0.1:7002"


@pytest.mark.parametrize(
    ("heard", "stands"),
    [
        ([(0, OLD), (5, None), (KEPT_S - 0.1, None)], OLD),
        ([(0, OLD), (KEPT_S, None)], None),
        ([(0, OLD), (5, None), (6, BARE)], OLD),
        ([(0, OLD), (5, None), (6, NEW)], NEW),
        ([(0, OLD), (KEPT_S, BARE)], BARE),
        ([(0, OLD), (1, replace(OLD, engines=()))], replace(OLD, engines=())),
        ([(0, OLD), (3, NEW), (4, replace(NEW, engines=()))], replace(NEW, engines=())),
    ],
    ids=(
        "silent for a moment",
        "silent for long",
        "a new leader whose engines have not come back",
        "a new leader with everything",
        "a new leader whose engines stay away",
        "the same leader has lost its engines",
        "the new leader has lost its engines",
    ),
)
def test_what_was_so_stands_for_seconds_while_leaders_change(
    heard: list[tuple[float, SchedulerFacts | None]], stands: SchedulerFacts | None
) -> None:
    standing = RetainedFacts()
    found = [standing.of(facts, now) for now, facts in heard]
    assert found[-1] == stands


@dataclass
class World:
    """A pool that serves, and a clock. `answers` by target: what a scheduler says there; none: no process is there."""

    cluster: Kept = field(default_factory=Kept)
    store: Store = field(default_factory=Store)
    answers: dict[str, SchedulerFacts] = field(default_factory=dict)
    ending: list[tuple[str, list[str]]] = field(default_factory=list)
    now: float = 0.0
    version: int = 10_000
    again_s: float = 0.0

    def __post_init__(self) -> None:
        self.controller = Controller(self.cluster, self.store, PLATFORM, lambda: self.now)

    def put(self, body: Json) -> None:
        self.version += 1
        body = copy.deepcopy(body)
        body["metadata"]["resourceVersion"] = str(self.version)
        self.store.put(body)

    def ready(self, part: str, kind: str, count: int) -> None:
        self.put(self.cluster.objects[kind, f"pool-{part}"] | {"status": {"readyReplicas": count, "replicas": count}})

    async def look(self, after_s: float = 1.0) -> dict[str, str]:
        """Ready of the GpuPool and the ModelPool."""
        self.now += after_s
        self.again_s = await self.controller.reconcile(KEY)
        found = {}
        for kind, name in (("GpuPool", "pool"), ("ModelPool", "red")):
            conditions = self.cluster.objects[kind, name]["status"]["conditions"]
            found[kind] = next(one["status"] for one in conditions if one["type"] == "Ready")
        return found


class Events(Kept):
    """An API server that takes everything, and counts Events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Json] = []

    async def create(self, manifest: Json) -> Json:
        if manifest["kind"] == "Event":
            self.events.append(manifest)
        return await super().create(manifest)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    cluster = Events()
    found = World(cluster)

    found.ending = scripted(monkeypatch, lambda target: found.answers.get(target, SILENT)).ending
    for one in (gpu_pool(), model_pool("red", "llama")):
        cluster.objects[one["kind"], one["metadata"]["name"]] = one
        found.store.put(one)
    found.answers = {"scheduler": OLD}
    await found.look()
    for part, kind, count in (
        ("scheduler", "Deployment", 1),
        ("gateway", "Deployment", 2),
        ("engine", "StatefulSet", 2),
    ):
        found.ready(part, kind, count)
    assert await found.look() == {"GpuPool": "True", "ModelPool": "True"}
    cluster.events.clear()
    return found


async def test_a_leader_that_is_replaced_while_it_serves_on_flips_nothing(world: World) -> None:
    """Its pod is deleted: out of its Service at once, it leads until it ends; the next one starts meanwhile."""
    ends = (datetime.now(UTC) + timedelta(seconds=25)).strftime("%Y-%m-%dT%H:%M:%SZ")
    ending = pod("pool-scheduler-a", "scheduler", podIP="10.0.0.1")
    ending["metadata"]["deletionTimestamp"] = ends
    ending["metadata"]["labels"] = labels(KEY, "scheduler")
    world.put(ending)
    world.ready("scheduler", "Deployment", 0)
    world.answers = {OLD_POD: OLD}
    seen = [await world.look() for _ in range(12)]
    world.ready("scheduler", "Deployment", 1)
    world.answers |= {"scheduler": STARTS}
    seen += [await world.look() for _ in range(3)]
    world.answers = {"scheduler": STARTS}
    seen += [await world.look() for _ in range(2)]
    world.answers = {"scheduler": BARE}
    seen += [await world.look() for _ in range(2)]
    world.answers = {"scheduler": NEW}
    seen += [await world.look() for _ in range(2)]
    assert [one for one in seen if "False" in one.values()] == []
    assert isinstance(world.cluster, Events)
    assert len(world.cluster.events) <= 3


async def test_a_leader_that_is_lost_is_reported_before_ten_seconds_are_over(world: World) -> None:
    world.answers = {}
    seen = [await world.look() for _ in range(9)]
    assert seen[0] == {"GpuPool": "True", "ModelPool": "True"}
    assert seen[-1] == {"GpuPool": "False", "ModelPool": "False"}


async def test_the_first_engine_after_zero_is_no_outage(world: World) -> None:
    """Requests wait for it, and for the files that it fetches."""
    scaled = {"engines": {"replicas": 0, "min": 0, "max": 2}}
    body = gpu_pool(**scaled)
    body["metadata"] |= {"generation": 2}
    world.cluster.objects["GpuPool", "pool"] = body
    world.put(body)
    world.answers = {"scheduler": replace(OLD, models={"llama": ModelFacts()}, engines=())}
    world.ready("engine", "StatefulSet", 0)
    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    starts = broken("pool-engine-0", "engine", {"running": {}}, started=False)
    starts["metadata"] |= {"labels": labels(KEY, "engine"), "creationTimestamp": began}
    live = world.cluster.objects["StatefulSet", "pool-engine"]
    world.put(live | {"spec": live["spec"] | {"replicas": 1}, "status": {"replicas": 1}})
    world.put(starts)
    assert await world.look() == {"GpuPool": "True", "ModelPool": "True"}
    world.answers = {"scheduler": replace(OLD, models={"llama": ModelFacts("fetching")}, engines=ENGINES[:1])}
    assert await world.look() == {"GpuPool": "True", "ModelPool": "True"}
    starts["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    world.put(starts)
    assert await world.look() == {"GpuPool": "True", "ModelPool": "False"}, "no request waits for so long"


async def test_the_leader_learns_of_engines_that_are_deleted(world: World) -> None:
    """Those on a disconnected node come back with it, before they know of their end."""
    deleted = pod("pool-engine-1", "engine")
    deleted["metadata"] |= {"labels": labels(KEY, "engine"), "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.put(deleted)
    await world.look()
    assert world.ending == [("scheduler", ["pool-engine-1"])]


async def test_a_pool_whose_requests_get_nothing_says_so_before_ten_seconds_are_over(world: World) -> None:
    """Looks come when the controller wants them."""
    silent_s, seen = 0.0, {"GpuPool": "True"}
    while seen["GpuPool"] == "True":
        assert silent_s < 10.0
        silent_s += min(world.again_s, 30.0)
        world.answers = {"scheduler": replace(OLD, waiting={"llama": Wait(silent_s)})}
        seen = await world.look(world.again_s)
    assert seen["ModelPool"] == "False"
    assert SILENT_S <= silent_s < 10.0


async def test_a_leader_without_gateways_serves_nothing_once_they_had_time_to_come_back(world: World) -> None:
    world.answers = {"scheduler": replace(NEW, gateways=frozenset())}
    seen = [await world.look() for _ in range(9)]
    assert seen[0] == {"GpuPool": "True", "ModelPool": "True"}
    assert seen[-1] == {"GpuPool": "False", "ModelPool": "False"}
