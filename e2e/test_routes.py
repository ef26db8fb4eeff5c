"""Tenants reach their models through a Gateway: Envoy Gateway, and the HTTPRoutes that the operator makes."""

from __future__ import annotations

import http.client
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from e2e import envoy_gateway
from e2e.cluster.layout import default_layout
from e2e.load import Load
from e2e.manifests import RED, model_pool
from e2e.pool import PORT, PodsOfPool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]
HOST = "red.example"


@pytest.fixture(scope="module")
def address(pool: PodsOfPool) -> Iterator[str]:
    """Of the Gateway; tenant red's ModelPool names it."""
    envoy_gateway.install(pool.kubeconfig, default_layout())
    routed = model_pool("red", ["llama", "qwen2"])
    parent = {"name": envoy_gateway.GATEWAY, "namespace": envoy_gateway.NAMESPACE}
    routed["spec"]["gateway"] = {"parentRefs": [parent], "hostnames": [HOST]}
    pool.apply(routed)
    pool.kubectl("wait", "--for=create", "httproute/red", "--timeout=30s")
    yield envoy_gateway.address(pool.kubeconfig)
    pool.apply(model_pool("red", ["llama", "qwen2"]))
    envoy_gateway.uninstall(pool.kubeconfig)


def test_streams_pass_the_gateway_complete(pool: PodsOfPool, models: Path, address: str) -> None:
    wait_for_route(pool, address)
    with Load(f"http://{address}", {"llama": RED, "qwen2": RED}, models, host=HOST) as load:
        load.wait_for_answers(8)

    assert load.failures == []
    assert load.verdict().differences == ()


def test_an_unknown_host_is_the_gateways_404(pool: PodsOfPool, address: str) -> None:
    wait_for_route(pool, address)

    assert status(address, 80, "blue.example") == 404


def test_the_route_adds_less_than_three_milliseconds(pool: PodsOfPool, address: str) -> None:
    wait_for_route(pool, address)
    service = pool.url.removeprefix("http://").partition(":")[0]
    with (
        closing(http.client.HTTPConnection(service, PORT)) as plain,
        closing(http.client.HTTPConnection(address, 80)) as routed,
    ):
        pairs = [(seconds(plain, ""), seconds(routed, HOST)) for _ in range(200)]

    added = statistics.median(through - direct for direct, through in pairs)
    print(f"the route adds {added * 1e3:.2f} ms to a request, p50 of {len(pairs)}")
    assert added < 0.003


def wait_for_route(pool: PodsOfPool, address: str) -> None:
    """Until the gateway knows it."""
    pool.wait_until("the route leads to the pool", lambda: status(address, 80, HOST) == 200, 30)


def seconds(connection: http.client.HTTPConnection, host: str) -> float:
    """Of one small request over a connection that stands."""
    began = time.perf_counter()
    connection.request("GET", "/v1/models", headers=headers(host))
    connection.getresponse().read()
    return time.perf_counter() - began


def status(address: str, port: int, host: str) -> int:
    """Of the list of models."""
    with closing(http.client.HTTPConnection(address, port, timeout=5)) as connection:
        connection.request("GET", "/v1/models", headers=headers(host))
        return connection.getresponse().status


def headers(host: str) -> dict[str, str]:
    """Of tenant red."""
    return {"Authorization": f"Bearer {RED}"} | ({"Host": host} if host else {})
