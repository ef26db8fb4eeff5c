"""GIE's reference picker beside ours: the same Envoy, on this machine, with an API server that says what to pick."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import definitions
from e2e.cluster.binaries import REFERENCE_PICKER, find
from e2e.cluster.layout import default_layout
from e2e.conformance.pickers import REFERENCE_OPTIONS, forget_reference, reference_kinds
from e2e.envoy import Way, free_ports, way_of
from e2e.kubectl import define, kubectl

_NAMESPACE, _NAME = "reference-picker", "pool"
_LABELS = {"app": "server"}


@dataclass(frozen=True, slots=True)
class Reference:
    """What it takes to run it."""

    binary: Path
    kubeconfig: Path


def find_reference() -> Reference | None:
    """None where it was not built or there is no API server: `make reference-picker cluster-up NODES=0`."""
    binary = find(REFERENCE_PICKER)
    kubeconfig = Path(os.environ.get("KUBECONFIG") or default_layout().kubeconfig)
    return Reference(binary, kubeconfig) if binary and kubeconfig.exists() else None


@asynccontextmanager
async def reference_way(reference: Reference, folder: Path, port: int) -> AsyncIterator[Way]:
    """Over TLS, to the one server on `port`."""
    with _pool_of(reference.kubeconfig, port):

        def start(listen: int, health: int) -> tuple[str, ...]:
            pool = (f"--pool-name={_NAME}", f"--pool-namespace={_NAMESPACE}")
            (metrics,) = free_ports(1)
            ports = (f"--grpc-port={listen}", f"--grpc-health-port={health}", f"--metrics-port={metrics}")
            program = ("env", f"KUBECONFIG={reference.kubeconfig}", str(reference.binary))  # it has no option for that
            return (*program, *pool, *ports, *REFERENCE_OPTIONS, "--zap-log-level=error")

        async with way_of(start, folder, port, tls="selfSigned") as made:
            yield made


@contextmanager
def _pool_of(kubeconfig: Path, port: int) -> Iterator[None]:
    """An InferencePool with a pod that no kubelet runs; its status is ready at 127.0.0.1."""
    define(kubeconfig, [*definitions.files(definitions.INFERENCE_POOL), *reference_kinds()])
    kubectl(kubeconfig, "create", "namespace", _NAMESPACE)
    inside = ("-n", _NAMESPACE)
    try:
        kubectl(kubeconfig, *inside, "wait", "--for=create", "serviceaccount/default", "--timeout=240s")
        kubectl(kubeconfig, *inside, "create", "-f", "-", stdin=json.dumps(_objects(port)))
        patch = json.dumps({"status": _STATUS})
        kubectl(kubeconfig, *inside, "patch", "pod", "server", "--subresource=status", "--type=merge", "-p", patch)
        yield
    finally:
        kubectl(kubeconfig, *inside, "delete", "pod", "server", "--ignore-not-found", "--force", "--grace-period=0")
        kubectl(kubeconfig, "delete", "namespace", _NAMESPACE, "--timeout=240s")
        forget_reference(kubeconfig)


_STATUS = {
    "phase": "Running",
    "podIP": "127.0.0.1",
    "podIPs": [{"ip": "127.0.0.1"}],
    "conditions": [{"type": "Ready", "status": "True"}],
}


def _objects(port: int) -> dict[str, Any]:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "server", "labels": _LABELS},
        "spec": {"containers": [{"name": "server", "image": "server"}], "schedulerName": "none"},
    }
    pool = {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": _NAME},
        "spec": {
            "selector": {"matchLabels": _LABELS},
            "targetPorts": [{"number": port}],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        },
    }
    return {"apiVersion": "v1", "kind": "List", "items": [pod, pool]}
