"""Istio in the cluster, from its Go module and charts, with stock Envoy: a gateway that knows InferencePools."""

from __future__ import annotations

import importlib.resources
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import definitions, images
from e2e.cluster.binaries import ISTIO, build, source
from e2e.cluster.layout import Layout
from e2e.kubectl import define, helm, kubectl

NAMESPACE = "istio-system"
GATEWAY_CLASS = "istio"
_CONTROLLER = "localhost/istio-pilot:1"
_PROXY = "localhost/istio-proxy:1"
_USER = 1337  # as Istio's own images have it
_MODULE = "istio.io/istio"
_CHARTS = {"istio-base": "base", "istiod": "istio-control/istio-discovery"}
_VALUES = Path(__file__).with_suffix(".yaml")


@contextmanager
def installed(kubeconfig: Path, layout: Layout) -> Iterator[None]:
    """For the time of a `with`. The definitions of the Gateway API and of InferencePool stay."""
    build(ISTIO)
    controller = images.of_program(layout, _CONTROLLER, layout.binaries / "pilot-discovery", _USER)
    images.load(layout, [controller, _proxy_image(layout)])
    try:
        _install(kubeconfig)
        yield
    finally:
        _uninstall(kubeconfig)


def _install(kubeconfig: Path) -> None:
    for kinds in (definitions.GATEWAY_API, definitions.INFERENCE_POOL):
        define(kubeconfig, definitions.files(kinds))
    where = ("--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout=300s")
    charts = source("istio", _MODULE) / "manifests" / "charts"
    with tempfile.TemporaryDirectory() as scratch:
        for release, folder in _CHARTS.items():
            chart = Path(scratch) / release
            shutil.copytree(charts / folder, chart, copy_function=shutil.copyfile)
            helm(kubeconfig, "upgrade", "--install", release, str(chart), *where, "--values", str(_VALUES))
    accepted = ("--for=condition=Accepted", f"gatewayclass/{GATEWAY_CLASS}")
    kubectl(kubeconfig, "wait", "--for=create", accepted[1], "--timeout=240s")
    kubectl(kubeconfig, "wait", *accepted, "--timeout=240s")


def _uninstall(kubeconfig: Path) -> None:
    """Istio's own definitions and what its controller makes outlive its charts, unless they are deleted by name."""
    for release in reversed(_CHARTS):
        helm(kubeconfig, "uninstall", release, "--namespace", NAMESPACE, "--ignore-not-found", "--wait")
    kubectl(kubeconfig, "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s")
    made = json.loads(kubectl(kubeconfig, "get", "gatewayclass,crd", "-o", "json"))["items"]
    for item in made:
        name = item["metadata"]["name"]
        if name.endswith(".istio.io") or item["spec"].get("controllerName", "").startswith("istio.io/"):
            kubectl(kubeconfig, "delete", item["kind"], name, "--ignore-not-found")
    roots = kubectl(kubeconfig, "get", "configmap", "-A", "-l", "istio.io/config=true", "-o", "json")
    for item in json.loads(roots)["items"]:
        there = ("-n", item["metadata"]["namespace"])
        kubectl(kubeconfig, *there, "delete", "configmap", item["metadata"]["name"], "--ignore-not-found")


def _proxy_image(layout: Layout) -> Path:
    """Istio's agent, which starts Envoy as PyPI has it; that needs the C library of our base."""
    images.ensure_base(layout, images.BASE)
    bootstrap = source("istio", _MODULE) / "tools" / "packaging" / "common" / "envoy_bootstrap.json"
    text = (
        f"FROM {images.BASE}\nCOPY pilot-agent envoy /usr/local/bin/\n"
        f"COPY {bootstrap.name} /var/lib/istio/envoy/envoy_bootstrap_tmpl.json\n"
        f'USER {_USER}:{_USER}\nENTRYPOINT ["/usr/local/bin/pilot-agent"]\n'
    )
    with importlib.resources.as_file(importlib.resources.files("envoy._bin") / "envoy") as envoy:
        return images.of_files(layout, _PROXY, text, layout.binaries / "pilot-agent", envoy, bootstrap)
