"""What the operator counts: looks at pools, calls of the API server, and how pools are."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from operator_api import api_server, refusal
from operator_objects import KEY, PLATFORM, gpu_pool, model_pool
from prometheus_client.parser import text_string_to_metric_families

from aegaeon_kube.errors import KubeError
from aegaeon_kube.server import ApiServer
from aegaeon_operator.config import from_environment
from aegaeon_operator.errors import SettingsError
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.metrics import Metrics, verb_and_resource
from aegaeon_operator.kube.queue import Queue
from aegaeon_operator.kube.store import Store
from aegaeon_operator.pki import LIFE
from aegaeon_operator.reconcile.cluster.facts import Key
from aegaeon_operator.reconcile.cluster.figures import PoolFigures

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(metrics: Metrics) -> Series:
    """By name and labels."""
    families = text_string_to_metric_families((await metrics.render()).decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return f"aegaeon_operator_{name}", frozenset(labels.items())


def of_pool(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return of(name, namespace=KEY.namespace, pool=KEY.name, **labels)


class Kept:
    """An API server that keeps nothing and takes all but what it is to refuse."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith(self.refused) and self.refused:
            return refusal(403, "a quota")
        if request.method == "GET":
            return refusal(404, "not found")
        body = await request.json()
        body["metadata"] = {"name": "made", "uid": "1", "resourceVersion": "2", **body["metadata"]}
        return web.json_response({"spec": {}, **body})


async def looked_at(metrics: Metrics, server: Kept, store: Store) -> Controller:
    """After one look at the pool."""
    async with api_server(server.answer) as api:
        controller = Controller(Cluster(api), store, PLATFORM, metrics=metrics)
        with metrics.look(KEY):
            await controller.reconcile(KEY)
    return controller


async def test_a_look_leaves_what_the_pool_lacks_and_when_its_certificates_expire() -> None:
    metrics, store = Metrics(lambda: 1000.0), Store()
    store.put(gpu_pool())
    store.put(model_pool("red", "llama"))
    before = datetime.now(UTC)

    await looked_at(metrics, Kept(), store)

    found = await scraped(metrics)
    assert found[of_pool("last_reconcile_timestamp_seconds")] == 1000.0
    ready = {labels["kind"]: (labels["name"], value) for labels, value in labelled(found, "ready")}
    assert ready == {"GpuPool": ("pool", 0.0), "ModelPool": ("red", 0.0)}
    expiries = {labels["role"]: value for labels, value in labelled(found, "certificate_expiry_timestamp_seconds")}
    assert expiries.keys() == {"ca", "operator", "scheduler", "gateway", "engine"}
    assert abs(expiries["engine"] - (before + LIFE).timestamp()) < timedelta(minutes=1).total_seconds()
    assert found[of_pool("pods_wanted", component="engine")] == 2
    assert found[of_pool("pods_ready", component="engine")] == 0
    assert found[of("reconcile_seconds_count")] == 1


def labelled(found: Series, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and values of one metric."""
    return [(dict(labels), value) for (known, labels), value in found.items() if known == f"aegaeon_operator_{name}"]


async def test_objects_that_the_api_server_refuses_are_counted_by_kind() -> None:
    metrics, store = Metrics(), Store()
    store.put(gpu_pool())

    await looked_at(metrics, Kept("pool-gateway", "pool-engine"), store)

    refused = {labels["kind"]: value for labels, value in labelled(await scraped(metrics), "refused_objects")}
    assert refused == {
        "Service": 2,
        "Deployment": 1,
        "StatefulSet": 1,
        "PodDisruptionBudget": 2,
        "NetworkPolicy": 2,
    }


async def test_errors_are_counted_by_pool_and_class_and_leave_the_last_good_look() -> None:
    metrics = Metrics(lambda: 7.0)
    other = Key(KEY.namespace, "other")
    metrics.seen(KEY, PoolFigures(), {})
    for key, error in ((KEY, KubeError(0, "away")), (KEY, KubeError(0, "away")), (other, KeyError("a bug"))):
        with pytest.raises(type(error)), metrics.look(key):
            raise error

    found = await scraped(metrics)

    assert found[of_pool("reconcile_errors_total", error="KubeError")] == 2
    assert found[of("reconcile_errors_total", namespace=other.namespace, pool=other.name, error="KeyError")] == 1
    assert found[of_pool("last_reconcile_timestamp_seconds")] == 7.0
    assert of("last_reconcile_timestamp_seconds", namespace=other.namespace, pool=other.name) not in found


async def test_certificates_of_a_gpu_pool_that_is_gone_expire_unheard_while_its_model_pools_stay() -> None:
    metrics, store = Metrics(), Store()
    store.put(gpu_pool())
    store.put(model_pool("red", "llama"))
    async with api_server(Kept().answer) as api:
        controller = Controller(Cluster(api), store, PLATFORM, metrics=metrics)
        await controller.reconcile(KEY)
        assert labelled(await scraped(metrics), "certificate_expiry_timestamp_seconds")
        store.remove({**gpu_pool(), "metadata": {**gpu_pool()["metadata"], "resourceVersion": "9"}})
        red = model_pool("red", "llama")
        store.put({**red, "metadata": {**red["metadata"], "resourceVersion": "9"}})
        await controller.reconcile(KEY)

    found = await scraped(metrics)
    assert not labelled(found, "certificate_expiry_timestamp_seconds")
    assert [labels["name"] for labels, _ in labelled(found, "ready")] == ["red"]


async def test_a_pool_that_is_gone_has_no_series() -> None:
    metrics, store = Metrics(), Store()
    store.put(gpu_pool())
    controller = await looked_at(metrics, Kept(), store)
    assert of_pool("last_reconcile_timestamp_seconds") in await scraped(metrics)

    store.remove({**gpu_pool(), "metadata": {**gpu_pool()["metadata"], "resourceVersion": "9"}})

    assert await controller.reconcile(KEY) == math.inf
    assert not [labels for _, labels in await scraped(metrics) if ("pool", KEY.name) in labels]


@pytest.mark.parametrize(
    ("method", "path", "verb", "resource"),
    [
        ("GET", "/api/v1/pods", "list", "pods"),
        ("GET", "/api/v1/namespaces/a/secrets", "list", "secrets"),
        ("GET", "/api/v1/namespaces/a/secrets/b", "get", "secrets"),
        ("POST", "/api/v1/namespaces/a/events", "create", "events"),
        ("PATCH", "/apis/apps/v1/namespaces/a/deployments/b", "patch", "deployments"),
        ("PATCH", "/apis/serving.aegaeon.io/v1alpha1/namespaces/a/gpupools/b/status", "patch", "gpupools/status"),
        ("DELETE", "/apis/policy/v1/namespaces/a/poddisruptionbudgets/b", "delete", "poddisruptionbudgets"),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "update", "leases"),
        ("GET", "/api/v1/namespaces", "list", "namespaces"),
    ],
)
def test_calls_are_named_as_rights_name_them(method: str, path: str, verb: str, resource: str) -> None:
    assert verb_and_resource(method, path) == (verb, resource)


async def test_every_call_is_counted_by_its_status_and_one_without_an_answer_too() -> None:
    metrics = Metrics()
    async with api_server(Kept("deployments/b").answer) as api:
        counted = ApiServer(api._session, dict, metrics.called)
        for path in ("/apis/apps/v1/namespaces/a/deployments/b", "/api/v1/namespaces/a/secrets/b"):
            with pytest.raises(KubeError):
                await counted.call("GET", path)
    with pytest.raises((KubeError, RuntimeError)):  # the session is closed
        await counted.call("GET", "/api/v1/namespaces/a/secrets/b")

    found = await scraped(metrics)

    codes = {(one["resource"], one["code"]): value for one, value in labelled(found, "api_requests_total")}
    assert codes == {("deployments", "403"): 1, ("secrets", "404"): 1, ("secrets", "none"): 1}
    assert found[of("api_request_seconds_count", verb="get", resource="secrets")] == 2


async def test_the_queue_says_how_many_wait_and_how_many_are_looked_at() -> None:
    begun, going_on = asyncio.Event(), asyncio.Event()

    async def look(_: Key) -> float:
        begun.set()
        await going_on.wait()
        return 600.0

    queue = Queue(look, workers=1)
    queue.add([Key("a", "one"), Key("a", "two")], 0.0)
    work = asyncio.create_task(queue.run())
    await asyncio.wait_for(begun.wait(), 60)

    assert (queue.running, queue.length) == (1, 1)

    work.cancel()


async def test_a_pool_that_is_gone_has_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, set_for = asyncio.Event(), list[float]()
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def noted(when: float, *given: Any, **more: Any) -> asyncio.TimerHandle:
        set_for.append(when)
        return call_at(when, *given, **more)

    async def look(_: Key) -> float:
        looked.set()
        return math.inf

    monkeypatch.setattr(loop, "call_at", noted)
    queue = Queue(look, workers=1)
    work = asyncio.create_task(queue.run())
    for times in (1, 2):
        queue.add([KEY], 0.0)
        await looked.wait()
        await asyncio.sleep(0)
        assert (len(set_for), queue.running) == (times, 0)
        looked.clear()

    work.cancel()


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none_is_refused_by_name(port: str) -> None:
    with pytest.raises(SettingsError, match=f"AEGAEON_METRICS_PORT is '{port}'"):
        from_environment({"AEGAEON_METRICS_PORT": port})
