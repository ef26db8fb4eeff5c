"""KEDA in the cluster, from its Go module and its own manifests, and a Prometheus under the name that examples have."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import definitions, images
from e2e.cluster.binaries import KEDA, build, source
from e2e.cluster.layout import Layout
from e2e.kubectl import define, kubectl

NAMESPACE = "keda"
_MODULE = "github.com/kedacore/keda/v2"
_PARTS = ("general", "service_account", "rbac", "manager", "metrics-server")
# As the manifests name the images, and what is started in each.
_IMAGES = {"ghcr.io/kedacore/keda:main": "keda", "ghcr.io/kedacore/keda-metrics-apiserver:main": "keda-adapter"}
_PROMETHEUS, _PORT = ("monitoring", "prometheus-operated"), 9090  # as the example has it


@contextmanager
def installed(kubeconfig: Path, layout: Layout) -> Iterator[None]:
    """Operator and metrics server, for the time of a `with`."""
    folder = build(KEDA)
    archives = [_image(layout, folder / program, name) for program, name in zip(KEDA, _IMAGES, strict=True)]
    images.load(layout, archives)
    kinds = definitions.files(definitions.KEDA)
    define(kubeconfig, kinds)
    config = source("keda", _MODULE) / "config"
    parts = [kubectl(kubeconfig, "kustomize", str(config / part)) for part in _PARTS]
    manifests = "\n---\n".join(parts).replace("imagePullPolicy: Always", "imagePullPolicy: Never")
    try:
        kubectl(kubeconfig, "apply", "--server-side", "-f", "-", stdin=manifests)
        rollout = ("-n", NAMESPACE, "rollout", "status", "--timeout=240s")
        for deployment in ("keda-operator", "keda-metrics-apiserver"):
            kubectl(kubeconfig, *rollout, f"deployment/{deployment}")
        yield
    finally:
        kubectl(kubeconfig, "delete", "--ignore-not-found", "--timeout=180s", "-f", "-", stdin=manifests)
        kubectl(kubeconfig, "delete", "--ignore-not-found", *(f"--filename={file}" for file in kinds))


@contextmanager
def prometheus(kubeconfig: Path, layout: Layout, targets: list[dict[str, Any]], folder: Path) -> Iterator[None]:
    """A process of this machine that scrapes static targets; pods find it by the name of the Prometheus operator's."""
    scrape = {"job_name": "aegaeon", "static_configs": targets}
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}), "utf-8")
    flags = (f"--config.file={config}", f"--storage.tsdb.path={folder}/data", "--log.level=warn")
    listen = f"--web.listen-address={layout.machine_ip}:{_PORT}"
    manifests = "\n---\n".join(map(json.dumps, _named(layout.machine_ip)))
    program = build(("prometheus",)) / "prometheus"
    with subprocess.Popen([program, *flags, listen]) as server:
        try:
            kubectl(kubeconfig, "apply", "-f", "-", stdin=manifests)
            yield
        finally:
            kubectl(kubeconfig, "delete", "--ignore-not-found", "-f", "-", stdin=manifests)
            server.terminate()


def _image(layout: Layout, program: Path, name: str) -> Path:
    start = f"/{_IMAGES[name]}"
    text = f'FROM scratch\nCOPY {program.name} {start}\nUSER 65532:65532\nENTRYPOINT ["{start}"]\n'
    return images.of_files(layout, name, text, program)


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
        "addressType": "IPv4",
        "ports": [port],
        "endpoints": [{"addresses": [address]}],
    }
