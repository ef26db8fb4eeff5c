"""What stands by is moved from the node of what it stands by for, once another node is free, and in no other case."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from operator_api import api_server
from operator_memory import At, Memory
from operator_objects import KEY, PLATFORM, gpu_pool, model_pool
from operator_state import broken, pod
from tests.operator.scripted import SILENT, scripted

from aegaeon_operator.kube.client import Cluster, Listed, Resource
from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.relocation import FREE_S, LONGEST_S, Relocations
from aegaeon_operator.kube.replica_spread import to_move
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.facts import ChildKey, SchedulerFacts
from aegaeon_operator.reconcile.cluster.names import labels
from aegaeon_operator.reconcile.cluster.node_fit import takes

Json = dict[str, Any]
LEADS, STANDS_BY = SchedulerFacts("a", term=7), SchedulerFacts("b", standby=True)


def node(name: str, ready: bool = True, **spec: Any) -> Json:
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": "a", "gpus": "8"}}
    return {"kind": "Node", "metadata": metadata, "spec": spec, "status": {"conditions": conditions}}


@dataclass
class World:
    """A pool with a standby on nodes n1 and n2, an operator that looks at it, and a clock."""

    memory: Memory
    cluster: Cluster
    answers: dict[str, SchedulerFacts] = field(default_factory=lambda: {"scheduler": LEADS, "standby": STANDS_BY})
    now: float = 0.0
    pods: int = 0

    def __post_init__(self) -> None:
        self._store = Store()
        self._controller = Controller(self.cluster, self._store, PLATFORM, lambda: self.now)

    def place(self, component: str, node_name: str, ready: bool = True) -> None:
        """In place of the pod that was there."""
        for at in [at for at in self.memory.objects if at.kind == "Pod" and f"pool-{component}-" in at.name]:
            self.memory.remove(at)
        self.pods += 1
        name = f"pool-{component}-{self.pods}"
        body = pod(name, component) if ready else broken(name, component, {"running": {}}, started=True)
        body["metadata"] |= {"labels": labels(KEY, component)}
        body["spec"]["nodeName"] = node_name
        self.memory.put(body)
        deployment = self.memory.objects[At("Deployment", KEY.namespace, f"pool-{component}")]
        self.memory.put(deployment | {"status": {"readyReplicas": int(ready), "replicas": 1}})

    async def look(self, after_s: float = 5.0) -> Json:
        """The condition after a look at what is in the cluster."""
        self.now += after_s
        present = {at: body for at, body in self.memory.objects.items() if at.kind not in ("Node", "Event")}
        for body in present.values():
            self._store.put(body)
        self._store.keep_only("Pod", None, map(ChildKey.of, present.values()), 10**9)
        await self._controller.reconcile(KEY)
        status = self.memory.objects[At("GpuPool", *KEY)]["status"]
        return next((each for each in status.get("conditions", ()) if each["type"] == "Redundant"), {})

    @property
    def evicted(self) -> list[str]:
        """Components whose pods were evicted, in order."""
        return [call.at.name.split("-")[1] for call, _ in self.memory.written if call.verb == "evict"]

    @property
    def nodes_listed(self) -> int:
        return sum(call.at.kind == "Node" for call in self.memory.calls)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    memory = Memory()
    for body in (gpu_pool(scheduling={"standby": True}), model_pool("red", "llama"), node("n1"), node("n2")):
        memory.put(body)
    async with api_server(memory.answer) as api:
        made = World(memory, Cluster(api))
        scripted(monkeypatch, lambda target: made.answers.get(target, SILENT))
        await made.look()
        made.place("scheduler", "n1")
        made.place("standby", "n2")
        yield made


async def test_a_pool_on_two_nodes_is_redundant_and_no_node_is_asked_for(world: World) -> None:
    assert (await world.look())["status"] == "True"
    assert world.nodes_listed == 0


async def test_after_a_drain_the_standby_moves_once_the_node_has_been_free_for_a_minute(world: World) -> None:
    world.memory.put(node("n1", unschedulable=True))
    world.place("scheduler", "n2")
    for _ in range(40):
        condition = await world.look()
    assert (condition["status"], condition["reason"], world.evicted) == ("False", "SharedNode", [])
    assert "node n2" in condition["message"]
    assert "no other node" in condition["message"]
    assert world.nodes_listed <= 11, "once in 20 s"
    world.memory.put(node("n1"))
    freed = world.now
    while not world.evicted and world.now < freed + 100:
        condition = await world.look()
    assert world.evicted == ["standby"]
    assert FREE_S <= world.now - freed <= FREE_S + 30
    events = [each for at, each in world.memory.objects.items() if at.kind == "Event"]
    assert [each["reason"] for each in events if "evicted" in each["message"]] == ["StandbyMoved"]
    world.place("standby", "n1")
    assert (await world.look())["status"] == "True"


async def test_who_leads_stays_whichever_it_is(world: World) -> None:
    world.answers = {"scheduler": STANDS_BY, "standby": LEADS}
    world.place("standby", "n1")
    for _ in range(20):
        await world.look()
    assert world.evicted == ["scheduler"]


@pytest.mark.parametrize("why", ["the standby is not ready", "the standby is silent", "none leads", "both lead"])
async def test_nothing_moves_while_not_both_are_well(world: World, why: str) -> None:
    world.place("standby", "n1", ready=why != "the standby is not ready")
    world.answers = {
        "the standby is not ready": {"scheduler": LEADS},
        "the standby is silent": {"scheduler": LEADS},
        "none leads": {"scheduler": STANDS_BY, "standby": STANDS_BY},
        "both lead": {"scheduler": LEADS, "standby": replace(LEADS, term=8)},
    }[why]
    for _ in range(30):
        condition = await world.look()
    assert world.evicted == []
    assert condition["status"] == "False"


async def test_one_that_comes_back_to_the_node_is_moved_ever_more_seldom() -> None:
    class Nodes(Cluster):
        """Two that are free, and no budget."""

        def __init__(self) -> None:
            self.evicted = list[float]()

        async def list(self, resource: Resource, namespace: str | None, labels: str = "", fields: str = "") -> Listed:
            return Listed([node("n1"), node("n2")], 1)

        async def evict(self, pod: Json) -> bool:
            self.evicted.append(now[0])
            return True

    now, cluster = [0.0], Nodes()
    moves, standby = Relocations(cluster, lambda: now[0]), pod("a", "standby")
    standby["spec"]["nodeName"] = "n1"
    while now[0] < 6 * LONGEST_S:
        await moves.consider("standby", standby)
        now[0] += 20.0
    gaps = [after - before for before, after in pairwise(cluster.evicted)]
    assert gaps == sorted(gaps)
    assert len(cluster.evicted) <= 12
    assert gaps[-1] >= LONGEST_S


async def test_rights_over_nodes_that_are_missing_are_said(world: World) -> None:
    world.memory.failing = lambda call: 403 if call.at.kind == "Node" else 0
    world.place("standby", "n1")
    assert "may not list nodes" in (await world.look())["message"]


async def test_whatever_happens_neither_a_leader_nor_the_last_ready_one_is_evicted(world: World) -> None:
    draws, moves = random.Random(46), 0
    for _ in range(150):
        component, name = draws.choice(("scheduler", "standby")), draws.choice(("n1", "n2"))
        step = draws.choice(("place", "node", "lead", "lead", "silent", *["wait"] * 6))
        if step == "place":
            world.place(component, name, ready=draws.random() < 0.8)
        elif step == "node":
            world.memory.put(node(name, ready=draws.random() < 0.8, unschedulable=draws.random() < 0.2))
        elif step == "lead":
            other = {"scheduler": "standby", "standby": "scheduler"}[component]
            world.answers = {component: LEADS, other: STANDS_BY}
        elif step == "silent":
            world.answers.pop(component, None)
        ready = {at.name: _is_ready(each) for at, each in world.memory.objects.items() if at.kind == "Pod"}
        before = len(world.evicted)
        await world.look(50.0)
        for gone in world.evicted[before:]:
            moves += 1
            assert world.answers[gone].standby
            assert sum(ready.values()) == 2
            world.place(gone, draws.choice(("n1", "n2")))
    assert moves >= 2


def _is_ready(body: Json) -> bool:
    return bool(body["status"]["conditions"][0]["status"] == "True")


TAINTED = node("n1", taints=[{"key": "gpu", "value": "h100", "effect": "NoSchedule"}])


@pytest.mark.parametrize(
    ("seen", "spec", "taken"),
    [
        (node("n1"), {}, True),
        (node("n1", ready=False), {}, False),
        (node("n1", unschedulable=True), {}, False),
        (TAINTED, {}, False),
        (TAINTED, {"tolerations": [{"key": "gpu", "operator": "Exists"}]}, True),
        (TAINTED, {"tolerations": [{"key": "gpu", "value": "h100", "effect": "NoSchedule"}]}, True),
        (TAINTED, {"tolerations": [{"key": "gpu", "value": "a10"}]}, False),
        (TAINTED, {"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}, False),
        (node("n1", taints=[{"key": "slow", "effect": "PreferNoSchedule"}]), {}, True),
        (node("n1"), {"nodeSelector": {"zone": "a"}}, True),
        (node("n1"), {"nodeSelector": {"zone": "b"}}, False),
    ],
)
def test_a_node_takes_a_pod_by_state_taints_and_labels(seen: Json, spec: Json, taken: bool) -> None:
    assert takes(seen, {"spec": spec}) is taken


@pytest.mark.parametrize(
    ("key", "operator", "values", "taken"),
    [
        ("zone", "In", ["a", "b"], True),
        ("zone", "NotIn", ["a"], False),
        ("rack", "NotIn", ["a"], True),
        ("zone", "Exists", None, True),
        ("zone", "DoesNotExist", None, False),
        ("gpus", "Gt", ["4"], True),
        ("gpus", "Lt", ["4"], False),
        ("zone", "Gt", ["4"], False),
        ("rack", "Lt", ["4"], False),
    ],
)
def test_a_node_takes_a_pod_whose_affinity_it_meets(key: str, operator: str, values: Any, taken: bool) -> None:
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n9"]}]},
        {"matchExpressions": [{"key": key, "operator": operator, "values": values}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert takes(node("n1"), {"spec": {"affinity": {"nodeAffinity": required}}}) is taken


def replica(name: str, node_name: str, owner: str = "newest", ready: bool = True) -> Json:
    body = pod(name, "") if ready else broken(name, "", {"running": {}}, started=True)
    metadata = {"labels": {"pod-template-hash": owner}, "ownerReferences": [{"uid": owner}], "namespace": "system"}
    body["metadata"] |= metadata
    body["spec"]["nodeName"] = node_name
    return body


@pytest.mark.parametrize(
    ("pods", "moved"),
    [
        ([replica("a", "n1"), replica("b", "n1")], "b"),
        ([replica("a", "n1"), replica("b", "n2")], None),
        ([replica("a", "n1"), replica("b", "n1"), replica("c", "n2")], None),
        ([replica("a", "n1"), replica("b", "n1", ready=False)], None),
        ([replica("a", "n1", ready=False), replica("b", "n1")], None),
        ([replica("a", "n1"), replica("b", "n1", owner="older")], None),
        ([replica("b", "n1")], None),
    ],
    ids=("one node", "two nodes", "a third", "not ready", "itself not ready", "an upgrade", "outside the cluster"),
)
async def test_the_operators_other_replica_moves(pods: list[Json], moved: str | None) -> None:
    memory = Memory()
    for body in (*pods, node("n1"), node("n2")):
        memory.put(body)
    async with api_server(memory.answer) as api:
        cluster, now = Cluster(api), [0.0]
        moves = Relocations(cluster, lambda: now[0])
        for _ in range(6):
            if spare := await to_move(cluster, "system", "a"):
                await moves.consider("operator", spare)
            now[0] += 20.0
    assert [call.at.name for call, _ in memory.written] == ([moved] if moved else [])
