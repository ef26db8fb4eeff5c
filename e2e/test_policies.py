"""The policies of a pool, enforced by the kernel: every role reaches what it dials, and nothing else; so do others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
from operator_objects import KEY, PLATFORM, gpu_pool, model_pool, observed

from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import Key
from aegaeon_operator.reconcile.cluster.names import labels
from aegaeon_operator.reconcile.cluster.platform import Egress, RedisAt
from e2e.policies import Place, enforced, reached

PORTS = (22, 53, 443, 4317, 6379, 6443, 7000, 7001, 7002, 7003, 7101, 7200, 8000, 9000, 9002, 9090)
OTHER = Key(KEY.namespace, "other")


def of_pool(component: str, address: str, key: Key = KEY) -> Place:
    name = component if key == KEY else f"other-{component}"
    return Place(name, address, key.namespace, labels(key, component))


POOL = [
    of_pool(component, f"10.4.0.{number}")
    for number, component in enumerate(("scheduler", "standby", "gateway", "engine", "picker"), 1)
]
# Those that have no policies here, and what is no pod.
OTHERS = [
    of_pool("gateway", "10.4.0.20", OTHER),
    Place("operator", "10.4.1.1", "system"),
    Place("prometheus", "10.4.1.2", "monitoring"),
    Place("proxy", "10.4.1.3", "edge", {"gateway.networking.k8s.io/gateway-name": "public"}),
    Place("dns", "10.4.1.4", "kube-system"),
    Place("redis", "10.4.1.5", "shared"),
    Place("minio", "10.4.1.6", "storage"),
    Place("apiserver", "10.5.0.1"),
    Place("collector", "10.5.0.2"),
    Place("private", "10.5.0.3"),
    Place("metadata", "169.254.169.254"),
    Place("public", "203.0.113.7"),
]
PLACES = [*POOL, *OTHERS]
Reached = set[tuple[str, int]]


def anywhere(port: int) -> Reached:
    """At every place whose own policies do not refuse it."""
    return {(place.name, port) for place in OTHERS}


def all_of(name: str) -> Reached:
    return {(name, port) for port in PORTS}


NAMES, API_SERVER = anywhere(53), anywhere(6443)
SCHEDULERS: Reached = {("scheduler", 7000), ("standby", 7000)}
SOURCES: Reached = {("public", 443), ("public", 9000)} | all_of("minio")
TRACES: Reached = {("collector", 4317)}
DIALLED: dict[str, Reached] = {
    "scheduler": NAMES | API_SERVER | TRACES,
    "standby": NAMES | API_SERVER | TRACES,
    "picker": NAMES | API_SERVER,
    "gateway": NAMES | SCHEDULERS | SOURCES | TRACES | all_of("redis"),
    "engine": NAMES | SCHEDULERS | SOURCES | {("gateway", 7200)},
}
API: Reached = {("gateway", 8000)}
METRICS: Reached = {
    *((name, 7001) for name in ("scheduler", "standby")),
    *(("engine", 7101), ("gateway", 9090), ("picker", 9090)),
}
ADMITTED: dict[str, Reached] = {
    "operator": API | {("scheduler", 7002), ("standby", 7002)},
    "prometheus": API | METRICS,
    "proxy": API | {("picker", 9002)},
    "other-gateway": API,
    "public": API,
    "private": API,
}


@pytest.fixture(scope="module")
def network() -> Iterator[None]:
    """A pool with all that it can dial, under its policies."""
    if os.geteuid() != 0 or shutil.which("nft") is None:
        pytest.skip("needs root, to make a network namespace for each pod, and nftables, to enforce policies in them")
    redis = RedisAt("rediss://redis.shared.svc:6379")
    platform = replace(PLATFORM, egress=Egress((6443,), (53,)), redis=redis, namespace="system")
    pool = gpu_pool(
        gateway={"endpointPicker": {}},
        scheduling={"standby": True},
        tracing={"endpoint": "http://10.5.0.2:4317"},
        allowedSources=["*", "minio.storage.svc"],
        memory={**gpu_pool()["spec"]["memory"], "disk": {"path": "/var/models"}},
    )
    sources = [
        {"name": "far", "source": {"huggingFace": {"repository": "a/b"}}},
        {"name": "near", "source": {"s3": {"bucket": "b", "endpoint": "http://minio.storage.svc:9000"}}},
    ]
    found = desired(observed(pool, model_pool("red", models=sources), platform=platform)).manifests
    policies = [one for one in found if one["kind"] == "NetworkPolicy"]
    with enforced(PLACES, policies, PORTS):
        yield


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("role", DIALLED)
def test_a_role_reaches_what_it_dials_and_nothing_else(role: str) -> None:
    (place,) = (one for one in POOL if one.name == role)

    assert reached(place, PLACES, PORTS) == DIALLED[role]


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("name", ADMITTED)
def test_others_reach_of_a_pool_what_they_are_admitted_to(name: str) -> None:
    (place,) = (one for one in OTHERS if one.name == name)

    assert reached(place, POOL, PORTS) == ADMITTED[name]
