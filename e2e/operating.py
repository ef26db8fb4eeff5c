"""The operator as a process of this machine, in a namespace of a real API server: started, killed, looked at.

The namespace is the one of the kubeconfig's context; the fixture `namespaced` gives each test one of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import yaml
from kubernetes import client

from e2e.kubectl import kubectl
from e2e.polling import poll

MEMORY = {"deviceBytes": "13Mi", "slabSize": "256Ki", "hostModelCache": "32Mi", "hostKv": "12Mi"}
API = "serving.aegaeon.io/v1alpha1"
_WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
_OF_CONTROLLERS = {("deployments", "status"), ("statefulsets", "status")}
_OURS = ("gpupools", "modelpools", "deployments", "statefulsets", "secrets", "services", "networkpolicies")


def pool(name: str, **spec: Any) -> dict[str, Any]:
    given = {"engines": {"replicas": 0}, "memory": MEMORY, "volumes": {"models": {"path": "/srv/models"}}}
    return {"apiVersion": API, "kind": "GpuPool", "metadata": {"name": name}, "spec": {**given, **spec}}


def models(name: str, of: str, *names: str) -> dict[str, Any]:
    served = [{"name": one, "source": {"hostPath": one}} for one in names]
    spec = {"gpuPoolRef": {"name": of}, "models": served}
    return {"apiVersion": API, "kind": "ModelPool", "metadata": {"name": name}, "spec": spec}


def namespace_of(kubeconfig: Path) -> str:
    """The one that its only context names."""
    return str(yaml.safe_load(kubeconfig.read_text("utf-8"))["contexts"][0]["context"]["namespace"])


def start(
    kubeconfig: Path,
    name: str = "one",
    log: IO[bytes] | None = None,
    metrics_port: int = 0,
    inside: Sequence[str] = (),
    **variables: str,
) -> subprocess.Popen[bytes]:
    """An operator that works in the test's namespace; `variables` add to its environment, `inside` goes before it."""
    env = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "AEGAEON_NAMESPACES": namespace_of(kubeconfig),
        "AEGAEON_HEALTH_PORT": "0",
        "AEGAEON_METRICS_PORT": str(metrics_port),
        "POD_NAME": name,
        "POD_NAMESPACE": namespace_of(kubeconfig),
        **variables,
    }
    argv = [*inside, sys.executable, "-m", "aegaeon_operator"]
    return subprocess.Popen(argv, env=env, stdout=log, stderr=log)


def kill(process: subprocess.Popen[bytes]) -> None:
    """As a node that goes down would."""
    process.kill()
    process.wait()


@contextmanager
def operator(
    kubeconfig: Path, log: IO[bytes] | None = None, inside: Sequence[str] = (), **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """One that leads, and that ends cleanly when it is asked to. Its name is its own: a lease may be left over."""
    process = start(kubeconfig, "the-operator", log, 0, inside, **variables)
    try:
        poll("it leads", lambda: leader(kubeconfig) == "the-operator", 90)
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        kill(process)


@contextmanager
def killed_operator(kubeconfig: Path, name: str, metrics_port: int) -> Iterator[None]:
    """One that serves its metrics, does not lead yet, and is killed in the end: it does not release its Lease."""
    process = start(kubeconfig, name, metrics_port=metrics_port)
    try:
        yield
    finally:
        kill(process)


def leader(kubeconfig: Path) -> str:
    """Who holds the lease."""
    leases = objects(kubeconfig, "leases")
    return str(leases[0]["spec"].get("holderIdentity", "")) if leases else ""


def apply(kubeconfig: Path, *manifests: dict[str, Any]) -> None:
    given = "\n---\n".join(map(json.dumps, manifests))
    kubectl(kubeconfig, "apply", "--server-side", "-f", "-", stdin=given)


def objects(kubeconfig: Path, kinds: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl(kubeconfig, "get", kinds, "-o", "json"))["items"]
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


def writes(kubeconfig: Path) -> Counter[str]:
    """Count requests that changed, or tried to change, objects of our kinds, as the API server counts them.

    Without the status of workloads, which the cluster's own controllers write whenever they get to it.
    """
    total: Counter[str] = Counter()
    for line in kubectl(kubeconfig, "get", "--raw", "/metrics").splitlines():
        if line.startswith("apiserver_request_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            verb, resource, subresource = labels["verb"], labels["resource"], labels["subresource"]
            if verb in _WRITES and resource in _OURS and (resource, subresource) not in _OF_CONTROLLERS:
                total[f"{verb} {resource} {subresource}"] += int(float(line.rpartition(" ")[2]))
    return total


def create(api: client.ApiClient, namespace: str, body: dict[str, Any]) -> None:
    group, version = API.split("/")
    where = (group, version, namespace, f"{body['kind'].lower()}s")
    client.CustomObjectsApi(api).create_namespaced_custom_object(*where, body)


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))
