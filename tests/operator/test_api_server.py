"""Calls of an API server that is slow to start, refuses and breaks off: real HTTP, a server of the test's own."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import dead_proxy
import kubectl_cluster
import pytest
from aiohttp import web
from operator_api import api_server, refusal
from operator_objects import KEY, PLATFORM, gpu_pool
from real_proxy import real_proxy, through_proxy

from aegaeon_kube.errors import KubeError
from aegaeon_kube.server import ApiServer, address_in_pod, connect
from aegaeon_operator.config import OperatorConfig
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.operator import list_all
from aegaeon_operator.kube.queue import Queue
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.facts import Key


async def test_pools_seen_before_a_list_failed_are_reconciled_after_the_next() -> None:
    starting = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        if "httproutes" in request.path and not starting.is_set():
            starting.set()
            return refusal(429, "storage is (re)initializing")
        items = [gpu_pool()] if "gpupools" in request.path else []
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    looked: asyncio.Queue[Key] = asyncio.Queue()

    async def look(key: Key) -> float:
        looked.put_nowait(key)
        return 600.0

    queue, store, config = Queue(look, 1), Store(), OperatorConfig(PLATFORM, (), "test")
    async with api_server(handler) as api:
        with pytest.raises(KubeError, match="initializing"):
            await list_all(config, Cluster(api), store, queue)
        await list_all(config, Cluster(api), store, queue)
        work = asyncio.create_task(queue.run())
        assert await asyncio.wait_for(looked.get(), 60) == KEY
        work.cancel()


async def test_errors_carry_the_message_of_the_server() -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer of-now"
        return refusal(403, "pods is forbidden")

    async with api_server(handler) as api:
        with pytest.raises(KubeError, match="pods is forbidden") as raised:
            await api.call("GET", "/api/v1/pods")
        assert raised.value.status == 403
        with pytest.raises(KubeError, match="pods is forbidden"):
            [event async for event in api.watch("/api/v1/pods", "", "1", 1)]


@pytest.mark.parametrize("piece", [4099, 1 << 20])
async def test_watch_events_arrive_complete_and_an_error_event_is_raised(
    piece: int,
) -> None:
    big = {"type": "ADDED", "object": {"metadata": {"name": "x" * 300_000}}}
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
    lines = b"".join(json.dumps(event).encode() + b"\n" for event in (big, gone))

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.query["resourceVersion"] == "1"
        answer = web.StreamResponse()
        await answer.prepare(request)
        for begin in range(0, len(lines), piece):
            await answer.write(lines[begin : begin + piece])
        return answer

    async with api_server(handler) as api:
        events = api.watch("/api/v1/pods", "", "1", 10)
        assert await anext(events) == big
        with pytest.raises(KubeError, match="too old") as raised:
            await anext(events)
        assert raised.value.status == 410


async def test_an_unavailable_server_is_not_a_refusal() -> None:
    async with aiohttp.ClientSession("http://127.0.0.1:1") as session:
        with pytest.raises(KubeError, match="does not answer") as raised:
            await ApiServer(session, dict).call("GET", "/")
        assert raised.value.status == 0


@pytest.mark.parametrize(
    ("host", "url"), [("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")]
)
def test_a_pod_calls_the_api_server_by_its_address(monkeypatch: pytest.MonkeyPatch, host: str, url: str) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert address_in_pod() == url


@pytest.mark.parametrize("near", [True, False])
async def test_a_cluster_of_a_kubeconfig_is_reached_as_kubectl_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near: bool
) -> None:
    """By the proxy of the environment, but for this machine's own."""
    dead_proxy.use(monkeypatch)
    with kubectl_cluster.api_server() as known, ExitStack() as beside:
        known.has("/api/v1/nodes")
        kubeconfig = known.kubeconfig(tmp_path)
        if not near:
            kubeconfig.write_text(through_proxy(kubeconfig.read_text()))
            proxy = beside.enter_context(real_proxy(tmp_path))
            monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        async with connect() as server:
            assert await server.call("GET", "/api/v1/nodes") == {"items": []}
        assert near or proxy.asked("GET", f"0.0.0.0:{known.port}")
