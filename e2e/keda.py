"""KEDA in the cluster, from its Go module and its own manifests, and a Prometheus under the name that examples have."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import images
from e2e.cluster.binaries import KEDA, build, source
from e2e.cluster.layout import Layout, authority
from e2e.kubectl import kubectl
from e2e.kustomized import applied

_NAMESPACE = "keda"
_MODULE = "github.com/kedacore/keda/v2"
# As its manifests name the images, and what is started in each; in the order of KEDA.
_IMAGES = {
    "ghcr.io/kedacore/keda:main": "/keda",
    "ghcr.io/kedacore/keda-metrics-apiserver:main": "/keda-adapter",
    "ghcr.io/kedacore/keda-admission-webhooks:main": "/keda-admission-webhooks",
}
_PROMETHEUS, _PORT = ("monitoring", "prometheus-operated"), 9090  # as the example has it


@contextmanager
def installed(kubeconfig: Path, layout: Layout) -> Iterator[None]:
    """Operator, metrics server and admission webhooks, as releases of KEDA have them, for the time of a `with`."""
    folder = build(KEDA)
    named = zip(KEDA, _IMAGES.items(), strict=True)
    archives = [images.of_program(layout, name, folder / program, path=path) for program, (name, path) in named]
    images.load(layout, archives)
    with applied(kubeconfig, source("keda", _MODULE) / "config" / "default", _NAMESPACE):
        yield


@contextmanager
def prometheus(kubeconfig: Path, layout: Layout, targets: list[dict[str, Any]], folder: Path) -> Iterator[None]:
    """A process of this machine that scrapes static targets; pods find it by the name of the Prometheus operator's."""
    scrape = {"job_name": "aegaeon", "static_configs": targets}
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}), "utf-8")
    flags = (f"--config.file={config}", f"--storage.tsdb.path={folder}/data", "--log.level=warn")
    listen = f"--web.listen-address={authority(layout.machine_ip, _PORT)}"
    manifests = "\n---\n".join(map(json.dumps, _named(layout.machine_ip)))
    program = build(("prometheus",)) / "prometheus"
    with subprocess.Popen([program, *flags, listen]) as server:
        try:
            kubectl(kubeconfig, "apply", "-f", "-", stdin=manifests)
            yield
        finally:
            server.terminate()
            kubectl(kubeconfig, "delete", "--ignore-not-found", "--timeout=240s", "-f", "-", stdin=manifests)


def _named(address: str) -> Iterator[dict[str, Any]]:
    """A Service for an address outside of the cluster."""
    namespace, name = _PROMETHEUS
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    meta = {"name": name, "namespace": namespace}
    port = {"name": "web", "port": _PORT, "protocol": "TCP"}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [port]}}
    yield {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**meta, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv6" if ":" in address else "IPv4",
        "ports": [port],
        "endpoints": [{"addresses": [address]}],
    }
