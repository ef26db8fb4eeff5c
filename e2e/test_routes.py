"""Tenants reach their models through Gateways: the examples for Envoy Gateway and Istio, as they stand, and the
HTTPRoutes that the operator makes."""

from __future__ import annotations

import http.client
import statistics
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from e2e.cluster.layout import default_layout, url
from e2e.gateways import HOST, envoy_gateway_before, istio_before
from e2e.load import Load
from e2e.manifests import RED
from e2e.pool import PORT, PodsOfPool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]
# What each may add to a request, in seconds at p50, with little else on the machine. Istio asks the picker, too.
GATEWAYS = {"Envoy Gateway": (envoy_gateway_before, 0.003), "Istio": (istio_before, 0.006)}
COUNTED = 'aegaeon_picker_requests_total{outcome="routed"}'


@pytest.fixture(scope="module", params=GATEWAYS)
def gateway(request: pytest.FixtureRequest) -> str:
    """The name of the implementation."""
    return str(request.param)


@pytest.fixture(scope="module")
def address(pool: PodsOfPool, gateway: str) -> Iterator[str]:
    """Of the Gateway; tenant red's ModelPool names it."""
    before, _ = GATEWAYS[gateway]
    with before(pool, default_layout()) as found:
        yield found


def test_streams_pass_the_gateway_complete(pool: PodsOfPool, models: Path, address: str) -> None:
    wait_for_route(pool, address)
    with Load(url(address, 80), {"llama": RED, "qwen2": RED}, models, host=HOST) as load:
        load.wait_for_answers(8)

    load.check()


@pytest.mark.parametrize("gateway", ["Istio"], indirect=True)
def test_the_pools_picker_chooses_for_every_request(pool: PodsOfPool, address: str) -> None:
    wait_for_route(pool, address)
    before = picked(pool)
    assert [status(address, 80, HOST) for _ in range(10)] == [200] * 10
    assert picked(pool) == before + 10


def test_an_unknown_host_is_the_gateways_404(pool: PodsOfPool, address: str) -> None:
    wait_for_route(pool, address)

    assert status(address, 80, "blue.example") == 404


def test_the_route_adds_a_few_milliseconds(pool: PodsOfPool, gateway: str, address: str) -> None:
    wait_for_route(pool, address)
    _, limit_s = GATEWAYS[gateway]
    service = urlsplit(pool.url).hostname or ""
    with (
        closing(http.client.HTTPConnection(service, PORT)) as plain,
        closing(http.client.HTTPConnection(address, 80)) as routed,
    ):
        pairs = [(seconds(plain, ""), seconds(routed, HOST)) for _ in range(200)]

    added = statistics.median(through - direct for direct, through in pairs)
    print(f"{gateway}: the route adds {added * 1e3:.2f} ms to a request, p50 of {len(pairs)}")
    assert added < limit_s


def wait_for_route(pool: PodsOfPool, address: str) -> None:
    """Until the gateway knows it."""
    pool.wait_until("the route leads to the pool", lambda: status(address, 80, HOST) == 200, 90)


def seconds(connection: http.client.HTTPConnection, host: str) -> float:
    """Of one small request over a connection that stands."""
    began = time.perf_counter()
    connection.request("GET", "/v1/models", headers=headers(host))
    connection.getresponse().read()
    return time.perf_counter() - began


def status(address: str, port: int, host: str) -> int | None:
    """Of the list of models; None: nothing answers there yet."""
    with closing(http.client.HTTPConnection(address, port, timeout=5)) as connection, suppress(OSError):
        connection.request("GET", "/v1/models", headers=headers(host))
        return connection.getresponse().status
    return None


def picked(pool: PodsOfPool) -> float:
    """Requests for which the pool's endpoint pickers have chosen a gateway pod."""
    total = 0.0
    for pod in pool.pods("picker"):
        metrics = pool.kubectl(
            "get", "--raw", f"/api/v1/namespaces/{pool.namespace}/pods/{pod.name}:9090/proxy/metrics"
        )
        found = [line for line in metrics.splitlines() if line.startswith(COUNTED)]
        total += sum(float(line.rpartition(" ")[2]) for line in found)
    return total


def headers(host: str) -> dict[str, str]:
    """Of tenant red."""
    return {"Authorization": f"Bearer {RED}"} | ({"Host": host} if host else {})
