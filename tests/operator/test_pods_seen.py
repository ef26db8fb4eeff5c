"""Pods of a pool are read, never written, and what their Events tell reaches the status."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from operator_api import api_server, refusal
from operator_objects import KEY, PLATFORM, Json, gpu_pool, model_pool, observed
from operator_state import SERVED, State, broken, pod, suspended
from tests.operator.test_writing import Server
from tests.operator.test_zero import Kept

from aegaeon_operator.config import OperatorConfig
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.operator import list_all
from aegaeon_operator.kube.queue import Queue
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import Subject
from aegaeon_operator.reconcile.cluster.readiness import need_events

STATUS = "/apis/serving.aegaeon.io/v1alpha1/namespaces/infra/gpupools/pool/status"


def event(message: str, at: str, kind: str = "Warning") -> Json:
    head = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": head, "lastTimestamp": at, "type": kind, "message": message}


class WithEvents(Server):
    """Answers for Events as an API server does; None: it refuses them."""

    def __init__(self, events: list[Json] | None) -> None:
        super().__init__()
        self.events = events
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.path.endswith("/events"):
            self.asked.append(request.query["fieldSelector"])
            return refusal(403, "events is forbidden") if self.events is None else web.json_response(_list(self.events))
        return await super().answer(request)


def _list(items: list[Json]) -> Json:
    return {"metadata": {"resourceVersion": "1"}, "items": items}


def test_pods_are_not_children_and_are_never_deleted() -> None:
    seen = observed(gpu_pool(), model_pool("red", "llama"), pod("pool-engine-0", "engine"))
    assert [one["metadata"]["name"] for one in seen.pods] == ["pool-engine-0"]
    assert desired(seen).leftovers == ()


def test_pods_of_another_namespace_are_not_the_pools_whatever_their_labels_say() -> None:
    crashing = broken("pool-engine-0", "engine", {"waiting": {"reason": "CrashLoopBackOff"}})
    crashing["metadata"]["namespace"] = "team"
    assert observed(gpu_pool(), crashing).pods == ()


def test_a_pool_whose_gateways_cannot_use_redis_serves_and_is_degraded() -> None:
    objects = (gpu_pool(), model_pool("red", "llama"))
    away = State(
        "", objects, redis_away={"gw-b": "Timeout connecting to server", "gw-a": "Timeout connecting to server"}
    )
    (status,) = (one.status for one in away.reports() if one.about.kind == "GpuPool")
    conditions = {one["type"]: one for one in status["conditions"]}
    assert conditions["Ready"]["status"] == "True"
    assert (conditions["Degraded"]["status"], conditions["Degraded"]["reason"]) == ("True", "RedisAway")
    assert status["message"].startswith(
        "2 gateways cannot use Redis and enforce a share of the quotas each; gw-a: Time"
    )


def test_a_suspended_engine_is_neither_ready_nor_replaced_nor_a_degradation() -> None:
    """Of two engines Kueue has admitted one: the other is as wanted as before, and the pool serves."""
    objects = (gpu_pool(engines={"replicas": 2, "min": 1, "max": 4}), model_pool("red", "llama"))
    held = {"pool-engine-1": suspended("pool-engine-1", "engine", "gpus")}
    whole, some = (State("", objects, pods=pods, models={"llama": SERVED}) for pods in ({}, held))
    (status,) = (one.status for one in some.reports() if one.about.kind == "GpuPool")
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}
    assert (status["engines"], status["readyEngines"]) == ({"unified": "1/2"}, 1)
    assert conditions["EnginesReady"] == ("True", "SomeSuspended")
    assert conditions["Ready"] == ("True", "Serving")
    assert conditions["Progressing"] == ("True", "SomeSuspended")
    assert conditions["Degraded"] == ("False", "NothingMissing")
    assert "Kueue has not admitted it from LocalQueue gpus yet" in status["message"]
    seen, without = (observed(*objects, *pods) for pods in (held.values(), ()))
    assert desired(seen).manifests == desired(without).manifests
    assert whole.reports() != some.reports()


async def test_pods_with_our_label_are_listed_and_belong_to_their_pool() -> None:
    labels = {"app.kubernetes.io/instance": KEY.name, "serving.aegaeon.io/pool-namespace": KEY.namespace}
    theirs: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        if not request.path.endswith("/pods"):
            return web.json_response(_list([]))
        theirs.append(request.query["labelSelector"])
        body = pod("pool-engine-0", "engine")
        body["metadata"] |= {"labels": labels, "resourceVersion": "1"}
        return web.json_response(_list([body]))

    async def look(_: Any) -> float:
        return 600.0

    store = Store()
    async with api_server(handler) as api:
        await list_all(OperatorConfig(PLATFORM, (), "test"), Cluster(api), store, Queue(look, 1))
    assert theirs == ["app.kubernetes.io/managed-by=aegaeon-operator"]
    assert [one["kind"] for one in store.of_pool(KEY)] == ["Pod"]
    assert store.children_of(KEY) == []


async def message_of(server: WithEvents) -> str:
    """Of EnginesReady, after one look at a pool whose engines are not made."""
    store = Store()
    store.put(gpu_pool())
    async with api_server(server.answer) as api:
        assert await Controller(Cluster(api), store, PLATFORM).reconcile(KEY) <= 5.0
    conditions = server.there[STATUS]["status"]["conditions"]
    return next(str(one["message"]) for one in conditions if one["type"] == "EnginesReady")


async def test_the_newest_event_of_a_stateful_set_explains_why_it_creates_no_pods() -> None:
    server = WithEvents([event("later", "2026-01-03T00:00:00Z"), event("before", "2026-01-02T00:00:00Z")])
    assert (await message_of(server)).endswith("StatefulSet pool-engine cannot create pods: later")
    assert server.asked == ["involvedObject.kind=StatefulSet,involvedObject.uid=uid-of-pool-engine"]


async def test_a_warning_is_over_after_a_newer_event() -> None:
    server = WithEvents(
        [event("no room", "2026-01-02T00:00:00Z"), event("made", "2026-01-03T00:00:00Z", kind="Normal")]
    )
    assert "StatefulSet pool-engine has not created all pods yet" in await message_of(server)


async def test_events_are_listed_every_few_seconds_and_not_in_every_reconcile() -> None:
    asked: list[Subject] = []

    class Asked(Kept):
        """Counts questions."""

        async def warning(self, about: Subject) -> str:
            asked.append(about)
            return "no room"

    cluster, store, now = Asked(), Store(), [0.0]
    cluster.objects["GpuPool", KEY.name] = gpu_pool()
    store.put(gpu_pool())
    controller = Controller(cluster, store, PLATFORM, lambda: now[0])
    for at, count in ((0.0, 1), (1.0, 1), (4.9, 1), (5.0, 2)):
        now[0] = at
        await controller.reconcile(KEY)
        assert [one.key.name for one in asked] == ["pool-engine"] * count
        conditions = cluster.objects["GpuPool", KEY.name]["status"]["conditions"]
        assert any("cannot create pods: no room" in one["message"] for one in conditions), "what was heard is kept"


def test_events_of_an_object_that_is_gone_are_not_those_of_its_successor() -> None:
    waiting = broken("pool-engine-0", "engine", {"waiting": {"reason": "ContainerCreating"}})
    waiting["metadata"]["uid"] = "the-second"
    seen = observed(gpu_pool(), waiting)
    assert [(one.key.name, one.uid) for one in need_events(seen)] == [("pool-engine-0", "the-second")]


async def test_without_a_right_to_read_events_the_status_is_written_all_the_same() -> None:
    for events in ([], None):
        assert "StatefulSet pool-engine has not created all pods yet" in await message_of(WithEvents(events))
