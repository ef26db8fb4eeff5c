"""The operator as a process on a real API server: what it makes, that it rests and recovers, and at what size."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from e2e.kubectl import kubectl

NAMESPACE = "operator-test"
MEMORY = {"deviceBytes": "13Mi", "slabSize": "256Ki", "hostModelCache": "32Mi", "hostKv": "12Mi"}
API = "serving.aegaeon.io/v1alpha1"
_WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
_OURS = ("gpupools", "modelpools", "deployments", "statefulsets", "secrets", "services", "networkpolicies")


def pool(name: str, **spec: Any) -> dict[str, Any]:
    given = {"engines": {"replicas": 0}, "memory": MEMORY, "volumes": {"models": {"path": "/srv/models"}}}
    return {"apiVersion": API, "kind": "GpuPool", "metadata": {"name": name}, "spec": {**given, **spec}}


def models(name: str, of: str, *names: str) -> dict[str, Any]:
    served = [{"name": one, "source": {"hostPath": one}} for one in names]
    spec = {"gpuPoolRef": {"name": of}, "models": served}
    return {"apiVersion": API, "kind": "ModelPool", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def namespace(api: client.ApiClient, kubeconfig: Path) -> Iterator[str]:
    """A namespace that must go within a minute, whatever is in it."""
    kubectl(kubeconfig, "create", "namespace", NAMESPACE)
    yield NAMESPACE
    kubectl(kubeconfig, "delete", "namespace", NAMESPACE, "--timeout=60s")


def start(kubeconfig: Path, name: str = "one") -> subprocess.Popen[bytes]:
    """An operator that works in the test's namespace."""
    env = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "AEGAEON_NAMESPACES": NAMESPACE,
        "AEGAEON_HEALTH_PORT": "0",
        "POD_NAME": name,
        "POD_NAMESPACE": NAMESPACE,
    }
    return subprocess.Popen([sys.executable, "-m", "aegaeon_operator"], env=env)


def kill(process: subprocess.Popen[bytes]) -> None:
    """As a node that goes down would."""
    process.kill()
    process.wait()


@contextmanager
def operator(kubeconfig: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One that leads, and that ends cleanly when it is asked to. Its name is its own: a lease may be left over."""
    process = start(kubeconfig, "the-operator")
    try:
        wait_until("it leads", lambda: leader(kubeconfig) == "the-operator", 30)
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    finally:
        kill(process)


def leader(kubeconfig: Path) -> str:
    """Who holds the lease."""
    leases = objects(kubeconfig, "leases")
    return str(leases[0]["spec"].get("holderIdentity", "")) if leases else ""


def wait_until(what: str, true: Callable[[], bool], within_s: float) -> float:
    """Poll; returns how long it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < within_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.2)  # nothing to wait on: what is polled is a client's view
    return time.monotonic() - began


def apply(kubeconfig: Path, *manifests: dict[str, Any]) -> None:
    kubectl(
        kubeconfig,
        "-n",
        NAMESPACE,
        "apply",
        "--server-side",
        "-f",
        "-",
        stdin="\n---\n".join(map(json.dumps, manifests)),
    )


def objects(kubeconfig: Path, kinds: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl(kubeconfig, "-n", NAMESPACE, "get", kinds, "-o", "json"))["items"]
    return found


def accepted(kubeconfig: Path, kinds: str) -> int:
    """How many say Accepted of the spec that they have."""
    return sum(
        any(
            (one["type"], one["status"], one["observedGeneration"])
            == ("Accepted", "True", found["metadata"]["generation"])
            for one in found.get("status", {}).get("conditions", ())
        )
        for found in objects(kubeconfig, kinds)
    )


def writes(kubeconfig: Path) -> int:
    """Requests that changed, or tried to change, objects of our kinds, as the API server counts them."""
    total = 0.0
    for line in kubectl(kubeconfig, "get", "--raw", "/metrics").splitlines():
        if line.startswith("apiserver_request_total{") and any(f'resource="{one}"' in line for one in _OURS):
            total += float(line.rpartition(" ")[2]) if any(f'verb="{verb}"' in line for verb in _WRITES) else 0
    return int(total)


def test_it_makes_a_pool_and_then_rests(namespace: str, kubeconfig: Path) -> None:
    apply(kubeconfig, pool("demo", engines={"replicas": 2}), models("red", "demo", "llama"))
    with operator(kubeconfig):
        wait_until("both are accepted", lambda: accepted(kubeconfig, "gpupools,modelpools") == 2, 60)
        names = {
            (one["kind"], one["metadata"]["name"]) for one in objects(kubeconfig, "deploy,sts,svc,netpol,pdb,secret")
        }
        assert {("Deployment", "demo-scheduler"), ("StatefulSet", "demo-engine"), ("Secret", "demo-tls")} <= names
        time.sleep(3)  # controllers of the cluster fill in what is theirs
        before = writes(kubeconfig)
        kubectl(kubeconfig, "-n", NAMESPACE, "annotate", "gpool", "demo", "touched=yes")
        time.sleep(5)  # what must not happen needs time in which it could
        assert writes(kubeconfig) - before <= 1


def test_what_somebody_changed_is_put_right_and_what_is_gone_comes_back(namespace: str, kubeconfig: Path) -> None:
    apply(kubeconfig, pool("demo", engines={"replicas": 2}))

    def engines() -> int:
        found = [one for one in objects(kubeconfig, "statefulsets") if one["metadata"]["name"] == "demo-engine"]
        return int(found[0]["spec"]["replicas"]) if found else -1

    with operator(kubeconfig):
        wait_until("engines are there", lambda: engines() == 2, 60)
        kubectl(kubeconfig, "-n", NAMESPACE, "scale", "statefulset", "demo-engine", "--replicas=5")
        wait_until("two engines again", lambda: engines() == 2, 10)
        kubectl(kubeconfig, "-n", NAMESPACE, "delete", "statefulset", "demo-engine", "--cascade=orphan")
        wait_until("the StatefulSet again", lambda: engines() == 2, 10)
        kubectl(kubeconfig, "-n", NAMESPACE, "scale", "gpool", "demo", "--replicas=3")
        wait_until("three engines", lambda: engines() == 3, 10)


def test_killed_at_any_moment_the_next_one_ends_where_it_would_have(namespace: str, kubeconfig: Path) -> None:
    apply(kubeconfig, pool("demo", engines={"replicas": 1}), models("red", "demo", "llama"))
    for patience in (3.0, 3.3, 3.6):  # a start, and some writes
        process = start(kubeconfig)
        time.sleep(patience)  # a moment that nothing announces is what is tested
        kill(process)
    with operator(kubeconfig):
        wait_until("both are accepted", lambda: accepted(kubeconfig, "gpupools,modelpools") == 2, 60)
        assert len(objects(kubeconfig, "deploy,sts")) == 3


def test_a_standby_takes_over_when_the_leader_is_killed(namespace: str, kubeconfig: Path) -> None:
    first = start(kubeconfig, "first")
    wait_until("the first leads", lambda: leader(kubeconfig) == "first", 30)
    standby = start(kubeconfig, "standby")
    try:
        apply(kubeconfig, pool("before"))
        wait_until("the leader works", lambda: accepted(kubeconfig, "gpupools") == 1, 30)
        kill(first)
        apply(kubeconfig, pool("after"))
        wait_until("the standby has worked", lambda: accepted(kubeconfig, "gpupools") == 2, 30)
        assert leader(kubeconfig) == "standby"
    finally:
        kill(first)
        kill(standby)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_pools_and_a_thousand_model_pools(namespace: str, api: client.ApiClient, kubeconfig: Path) -> None:
    pools = [pool(f"pool-{one}", gateway={"replicas": 0}) for one in range(100)]
    tenants = [models(f"models-{one}", f"pool-{one % 100}", f"m{one}") for one in range(1000)]

    def all_accepted() -> bool:
        return accepted(kubeconfig, "gpupools,modelpools") == 1100

    with operator(kubeconfig) as process:
        began = time.monotonic()
        with ThreadPoolExecutor(8) as threads:  # kubectl would take most of the time
            list(threads.map(lambda one: create(api, one), [*pools, *tenants]))
        wait_until("all are accepted", all_accepted, 300)
        took = time.monotonic() - began
        resident = resident_mb(process.pid)
        time.sleep(10)  # controllers of the cluster fill in what is theirs
        before = writes(kubeconfig)
        time.sleep(30)  # what must not happen needs time in which it could
        rest = writes(kubeconfig) - before
    print(f"{took:.0f} s, {resident:.0f} MB, {rest} writes in 30 s at rest")
    assert took < 120
    assert resident < 400
    assert rest == 0


def create(api: client.ApiClient, body: dict[str, Any]) -> None:
    group, version = API.split("/")
    where = (group, version, NAMESPACE, f"{body['kind'].lower()}s")
    client.CustomObjectsApi(api).create_namespaced_custom_object(*where, body)


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
