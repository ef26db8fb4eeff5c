"""The endpoint picker follows an InferencePool and its pods on a real API server.

No kubelet runs the pods here: their status is written as it would.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from asyncio import create_task, sleep
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kubernetes import client

from aegaeon_kube.server import connect
from aegaeon_picker.fleet import Endpoint
from aegaeon_picker.watch import follow
from aegaeon_proto.channels import NO_PROXY
from e2e.cluster import definitions
from e2e.envoy import free_ports
from e2e.kubectl import define, filenames, kubectl

NAMESPACE = "aegaeon-picker"
LABELS = {"app": "gateway"}
POOL: dict[str, Any] = {
    "apiVersion": "inference.networking.k8s.io/v1",
    "kind": "InferencePool",
    "metadata": {"name": "pool"},
    "spec": {
        "selector": {"matchLabels": LABELS},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
    },
}
WAIT_S = 20.0


@pytest.fixture(scope="module")
def core(kubeconfig: Path, api: client.ApiClient) -> Iterator[Any]:
    """A namespace with the pool and no pods."""
    crds = definitions.files(definitions.INFERENCE_POOL)
    define(kubeconfig, crds)
    kubectl(kubeconfig, "wait", "--for=condition=Established", "--timeout=240s", *filenames(crds))
    kubectl(kubeconfig, "create", "namespace", NAMESPACE)
    # Pods are refused before it is there; its controller may make it at the same moment.
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}}
    kubectl(kubeconfig, "apply", "--server-side", "-f", "-", stdin=json.dumps(account))
    core: Any = client.CoreV1Api(api)
    objects: Any = client.CustomObjectsApi(api)
    objects.create_namespaced_custom_object("inference.networking.k8s.io", "v1", NAMESPACE, "inferencepools", POOL)
    yield core
    kubectl(kubeconfig, "delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture
async def endpoints(
    core: Any, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[], list[str]]]:
    """The newest that the watch said."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    lists: list[list[Endpoint]] = []

    async def changed(newest: list[Endpoint]) -> None:
        lists.append(newest)

    async with connect() as api:
        following = create_task(follow(api, NAMESPACE, "pool", changed))
        yield lambda: [str(each) for each in sorted(lists[-1])] if lists else []
        following.cancel()


def pod(core: Any, name: str, ip: str, *, ready: bool = True, labels: dict[str, str] | None = None) -> None:
    spec = {"containers": [{"name": "gateway", "image": "gateway"}], "nodeName": "nowhere"}
    body = {"metadata": {"name": name, "labels": labels or LABELS}, "spec": spec}
    core.create_namespaced_pod(NAMESPACE, body)
    mark(core, name, ip, ready=ready)


def mark(core: Any, name: str, ip: str, *, ready: bool) -> None:
    condition = {"type": "Ready", "status": str(ready)}
    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [condition]}
    core.patch_namespaced_pod_status(name, NAMESPACE, {"status": status})


async def becomes(endpoints: Callable[[], list[str]], wanted: list[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while endpoints() != wanted:
        assert time.monotonic() < deadline, f"{endpoints()} instead of {wanted}"
        await sleep(0.02)


async def test_ready_pods_of_the_selector_are_the_endpoints(core: Any, endpoints: Callable[[], list[str]]) -> None:
    pod(core, "one", "10.9.0.1")
    pod(core, "late", "10.9.0.2", ready=False)
    pod(core, "other", "10.9.0.3", labels={"app": "something"})
    await becomes(endpoints, ["10.9.0.1:8000"])
    mark(core, "late", "10.9.0.2", ready=True)
    await becomes(endpoints, ["10.9.0.1:8000", "10.9.0.2:8000"])
    mark(core, "one", "10.9.0.1", ready=False)
    await becomes(endpoints, ["10.9.0.2:8000"])
    core.delete_namespaced_pod("late", NAMESPACE, grace_period_seconds=30)  # without a kubelet it keeps terminating
    await becomes(endpoints, [])
    for name in ("one", "late", "other"):
        core.delete_namespaced_pod(name, NAMESPACE, grace_period_seconds=0)


def test_the_process_is_ready_once_it_has_read_the_pool(core: Any, kubeconfig: Path) -> None:
    listen, health = free_ports(2)
    ports = ("--listen", f"127.0.0.1:{listen}", "--health-listen", f"127.0.0.1:{health}", "--metrics-port", "0")
    argv = (sys.executable, "-m", "aegaeon_picker", "--pool", "pool", "--namespace", NAMESPACE, *ports)
    with subprocess.Popen(argv, env={"KUBECONFIG": str(kubeconfig), "PATH": "/usr/bin"}) as child:
        with grpc.insecure_channel(f"127.0.0.1:{health}", NO_PROXY) as channel:  # noqa: TID251 - blocking
            grpc.channel_ready_future(channel).result(timeout=60)
            answers = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
            assert any(answer.status == health_pb2.HealthCheckResponse.SERVING for answer in answers)
        child.terminate()
        assert child.wait(timeout=30) == 0
