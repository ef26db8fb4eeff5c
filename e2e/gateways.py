"""examples/gateways as they stand, in the cluster: a pool is reached through a Gateway of each implementation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e import envoy_gateway, istio
from e2e.balancer import load_balancer
from e2e.cluster.layout import Layout
from e2e.installation import with_values
from e2e.kubectl import REPOSITORY, kubectl
from e2e.manifests import model_pool
from e2e.pool import PodsOfPool

HOST = "red.example"  # of modelpool.yaml
_EXAMPLES = REPOSITORY / "examples" / "gateways"
_NAMESPACE, _NAME = "gateways", "tenants"  # of the Gateway, in each of the examples


@contextmanager
def envoy_gateway_before(pool: PodsOfPool, layout: Layout) -> Iterator[str]:
    """The address of Envoy Gateway's proxy, whose routes lead to the pool's gateways, for the time of a `with`."""
    with (
        envoy_gateway.installed(pool.kubeconfig, layout),
        _gateway(pool.kubeconfig, "envoy-gateway.yaml", envoy_gateway.NAMESPACE) as address,
        _routed(pool),
    ):
        yield address


@contextmanager
def istio_before(pool: PodsOfPool, layout: Layout) -> Iterator[str]:
    """The same of Istio, which asks the pool's endpoint picker for each request."""
    with (
        istio.installed(pool.kubeconfig, layout),
        with_values(pool.kubeconfig, "gateway.provider=istio"),
        _picked(pool),
        _gateway(pool.kubeconfig, "istio.yaml", _NAMESPACE) as address,
        _routed(pool),
    ):
        yield address


@contextmanager
def _gateway(kubeconfig: Path, example: str, of_services: str) -> Iterator[str]:
    """The Gateway of an example, with an address for the Service that its implementation makes in a namespace."""
    manifest = f"--filename={_EXAMPLES / example}"
    with load_balancer(kubeconfig, (of_services,)):
        try:
            kubectl(kubeconfig, "apply", manifest)
            programmed = ("wait", "--for=condition=Programmed", f"gateway/{_NAME}", "--timeout=240s")
            kubectl(kubeconfig, "-n", _NAMESPACE, *programmed)
            found = json.loads(kubectl(kubeconfig, "-n", _NAMESPACE, "get", "gateway", _NAME, "-o", "json"))
            yield str(found["status"]["addresses"][0]["value"])
        finally:
            kubectl(kubeconfig, "delete", manifest, "--ignore-not-found", "--timeout=180s")


@contextmanager
def _picked(pool: PodsOfPool) -> Iterator[None]:
    """With an InferencePool and its endpoint picker, which is ready."""
    pool.patch({"gateway": {"endpointPicker": {}}})
    try:
        pool.kubectl("wait", "--for=create", f"deployment/{pool.name}-picker", "--timeout=240s")
        pool.kubectl("rollout", "status", f"deployment/{pool.name}-picker", "--timeout=180s")
        yield
    finally:
        pool.patch({"gateway": {"endpointPicker": None}})
        pool.kubectl("wait", "--for=delete", f"inferencepool/{pool.name}", "--timeout=240s")


@contextmanager
def _routed(pool: PodsOfPool) -> Iterator[None]:
    """Tenant red's ModelPool is that of the example, as it stands."""
    pool.kubectl("apply", "-f", str(_EXAMPLES / "modelpool.yaml"))
    try:
        pool.kubectl("wait", "--for=create", "httproute/red", "--timeout=240s")
        yield
    finally:
        pool.apply(model_pool("red", ["llama", "qwen2"]))
        pool.kubectl("wait", "--for=delete", "httproute/red", "--timeout=240s")
