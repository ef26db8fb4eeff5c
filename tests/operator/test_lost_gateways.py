"""A gateway that its scheduler has lost is evicted while other gateways are attached, and in no other case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from operator_api import api_server
from operator_memory import At, Memory
from operator_objects import KEY, PLATFORM, gpu_pool, model_pool, observed
from operator_state import pod
from tests.operator.scripted import scripted
from tests.operator.test_redundancy import node

from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.facts import SchedulerFacts
from aegaeon_operator.reconcile.cluster.lost_gateways import ATTACH_S, LOST_S, LostGateways
from aegaeon_operator.reconcile.cluster.names import labels

Json = dict[str, Any]
A, B = "pool-gateway-a", "pool-gateway-b"


def gateway(name: str, ready: bool = True, ending: bool = False) -> Json:
    gateway = pod(name, "gateway")
    gateway["metadata"] |= {"labels": labels(KEY, "gateway")}
    gateway["spec"]["nodeName"] = f"node-of-{name}"
    if not ready:
        gateway["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    if ending:
        gateway["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return gateway


@dataclass
class Looks:
    """At a pool of two gateways, each second."""

    lost: LostGateways = field(default_factory=LostGateways)
    now: float = 0.0

    def look(
        self,
        *attached: str,
        leader: str = "one",
        silent: bool = False,
        pods: tuple[Json, ...] = (),
        led_s: float | None = None,
    ) -> str:
        """Return which is evicted. `led_s`: how long the leader has led by its term; None: it has no term."""
        self.now += 1.0
        seen = observed(gpu_pool(), *(pods or (gateway(A), gateway(B))))
        term = 0 if led_s is None else round((seen.now.timestamp() - led_s) * 1e6)
        facts = None if silent else SchedulerFacts(leader, gateways=frozenset(attached), term=term)
        evicted = self.lost.to_evict(seen, facts, self.now)
        return str(evicted["metadata"]["name"]) if evicted else ""


def test_one_that_was_attached_is_evicted_once_it_has_been_lost_for_some_seconds() -> None:
    looks = Looks()
    quiet, before = round(LOST_S), round(ATTACH_S)
    seen = [looks.look(*attached) for attached in (*[(A, B)] * before, *[(A,)] * (quiet + 2))]
    assert seen == [""] * (before + quiet) + [B] * 2


@pytest.mark.parametrize(
    "later",
    [
        [{"attached": ()}],
        [{"attached": (A,), "pods": (gateway(A), gateway(B, ready=False))}],
        [{"attached": (A,), "pods": (gateway(A), gateway(B, ending=True))}],
        [{"attached": (A,), "pods": (gateway(A, ending=True), gateway(B))}],
        [{"attached": (), "silent": True}],
        [{"attached": (A,)}] * 4 + [{"attached": (A, B)}] * 2,
        [{"attached": (A,)}, {"attached": (A,), "leader": "two"}, {"attached": (A,), "silent": True}],
    ],
    ids=["no other", "known", "ends already", "the other ends", "no scheduler", "it comes back", "leaders change"],
)
def test_none_is_evicted_that_may_be_the_last_or_back_in_a_moment(later: list[Json]) -> None:
    looks = Looks()
    looks.look(A, B)
    for number in range(60):
        how = dict(later[number % len(later)])
        assert not looks.look(*how.pop("attached"), **how)


def test_one_that_starts_is_left_to_attach() -> None:
    looks = Looks()
    assert not any(looks.look(A, pods=(gateway(A), gateway(B, ready=False))) for _ in range(60))


@pytest.mark.parametrize("operator", ["old", "new"])
def test_one_that_a_new_leader_has_never_seen_is_evicted_when_it_has_had_time_to_attach(operator: str) -> None:
    """The node of the leader, the gateway and perhaps the operator was lost."""
    looks = Looks()
    if operator == "old":
        looks.look(A, B)
    quiet = round(ATTACH_S)
    assert [looks.look(A, leader="two") for _ in range(quiet + 1)] == [""] * quiet + [B]


@pytest.mark.parametrize(
    ("led_s", "quiet_s"), [(0.0, ATTACH_S), (2.0, ATTACH_S - 2.0), (6.0, LOST_S), (3600.0, LOST_S), (-60.0, ATTACH_S)]
)
def test_an_operator_that_takes_over_counts_the_time_for_which_the_leader_has_led(led_s: float, quiet_s: float) -> None:
    """The last row: its clock is ahead."""
    looks, quiet = Looks(), round(quiet_s)
    assert [looks.look(A, led_s=led_s) for _ in range(quiet + 1)] == [""] * quiet + [B]


def test_a_leader_that_the_operator_saw_begin_has_all_of_its_time_whatever_its_clock_says() -> None:
    looks, quiet = Looks(), round(ATTACH_S)
    looks.look(A, B, leader="one", led_s=3600.0)
    assert [looks.look(A, leader="two", led_s=3600.0) for _ in range(quiet + 1)] == [""] * quiet + [B]


@pytest.mark.parametrize("refusal", [0, 403, 500])
async def test_the_operator_evicts_it_and_says_so(refusal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, attached, now = Memory(), [A, B], [0.0]
    refusals = [refusal] * 2
    memory.failing = lambda call: refusals.pop() if call.verb == "evict" and refusals else 0
    for body in (gpu_pool(), model_pool("red", "llama"), node("n1")):
        memory.put(body)

    scripted(monkeypatch, lambda _: SchedulerFacts("one", gateways=frozenset(attached)))
    async with api_server(memory.answer) as api:
        store = Store()
        controller = Controller(Cluster(api), store, PLATFORM, lambda: now[0])

        async def look() -> float:
            now[0] += 1.0
            for at, body in memory.objects.items():
                if at.kind not in ("Node", "Event"):
                    store.put(body)
            return await controller.reconcile(KEY)

        await look()
        deployment = memory.objects[At("Deployment", KEY.namespace, "pool-scheduler")]
        memory.put(deployment | {"status": {"readyReplicas": 1, "replicas": 1}})
        for name in (A, B):
            memory.put(gateway(name))
        await look()
        attached.remove(B)
        while not (gone := [call.at.name for call, _ in memory.written if call.verb == "evict"]) and now[0] < 30:
            assert await look() <= 1.0, "it is looked at again soon"
        await controller.close()
    assert gone == [B]
    events = [each["message"] for at, each in memory.objects.items() if at.kind == "Event" and B in each["message"]]
    assert any("other gateways are attached" in message for message in events)
