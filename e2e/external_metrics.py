"""An API server of external metrics for the time of a `with`, as prometheus-adapter is one: it says one value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from e2e.cluster.layout import Layout
from e2e.https import JsonHandler, https
from e2e.kubectl import kubectl

GROUP = "external.metrics.k8s.io"
_VERSION = f"{GROUP}/v1beta1"
_PATH = f"/apis/{_VERSION}"
_WHEN = "2026-01-01T00:00:00Z"


class Metric:
    """What it says of `name` to those who ask with `selector`, and how often it was asked."""

    def __init__(self, name: str, selector: str) -> None:
        self.name, self.selector = name, selector
        self.value = 0
        self.asked = 0

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """Discovery, or the value in any namespace. 404 for other names and selectors."""
        url = urlsplit(path)
        if url.path == _PATH:
            kind = {"name": self.name, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            return 200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": _VERSION, "resources": [kind]}
        (selector,) = parse_qs(url.query).get("labelSelector", [""])
        if not url.path.endswith(f"/{self.name}") or selector != self.selector:
            return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "message": path}
        self.asked += 1
        item = {"metricName": self.name, "metricLabels": {}, "timestamp": _WHEN, "value": str(self.value)}
        return 200, {"kind": "ExternalMetricValueList", "apiVersion": _VERSION, "metadata": {}, "items": [item]}


@contextmanager
def serving(kubeconfig: Path, layout: Layout, metric: Metric, folder: Path) -> Iterator[None]:
    """On the machine's address in the cluster's network, and known to the API server."""
    with https(_handler(metric), layout.machine_ip, folder) as port:
        manifests = "\n---\n".join(map(json.dumps, _registration(layout.machine_ip, port)))
        try:
            kubectl(kubeconfig, "apply", "-f", "-", stdin=manifests)
            kubectl(kubeconfig, "wait", "--for=condition=Available", f"apiservice/v1beta1.{GROUP}", "--timeout=240s")
            yield
        finally:
            kubectl(kubeconfig, "delete", "-f", "-", "--ignore-not-found", stdin=manifests)


def _registration(address: str, port: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The API server reaches it by a Service that stands for an address outside of the cluster."""
    meta = {"name": "external-metrics", "namespace": "kube-system"}
    spec = {"type": "ExternalName", "externalName": address}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}
    api = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1beta1.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": "v1beta1",
            "service": {**meta, "port": port},
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    }
    return service, api


def _handler(metric: Metric) -> type[JsonHandler]:
    class Handler(JsonHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802  # http.server's name
            self.answer(*metric.answer(self.path))

    return Handler
