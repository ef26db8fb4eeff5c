"""Envoy Gateway in the cluster, from its Go module and its own chart."""

from __future__ import annotations

import importlib.resources
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from string import Template

from e2e.cluster import definitions, images
from e2e.cluster.binaries import build, source
from e2e.cluster.layout import Layout
from e2e.kubectl import define, helm, kubectl

NAMESPACE = "envoy-gateway-system"
_CONTROLLER = "localhost/envoy-gateway:1.9.1"
_PROXY = "localhost/envoy:1.40.0"
_MODULE = "github.com/envoyproxy/gateway"


@contextmanager
def installed(kubeconfig: Path, layout: Layout) -> Iterator[None]:
    """For the time of a `with`. The definitions of the Gateway API and its own stay."""
    build(("envoy-gateway",))
    controller = images.of_program(layout, _CONTROLLER, layout.binaries / "envoy-gateway")
    images.load(layout, [controller, _proxy_image(layout)])
    define(kubeconfig, definitions.files(definitions.GATEWAY_API))
    try:
        _install(kubeconfig)
        yield
    finally:
        helm(kubeconfig, "uninstall", "eg", "--namespace", NAMESPACE, "--ignore-not-found", "--wait")


def _install(kubeconfig: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(scratch) / "gateway-helm"
        shipped = source("envoy-gateway", _MODULE) / "charts" / "gateway-helm"
        shutil.copytree(shipped, chart, copy_function=shutil.copyfile)
        _write_values(chart)
        generated = chart / "charts" / "crds" / "crds" / "generated"
        kubectl(kubeconfig, "apply", "--server-side", "-f", str(generated))
        settings = ["crds.enabled=false", "topologyInjector.enabled=false"]
        settings += [f"global.images.envoyProxy.image={_PROXY}", "global.images.envoyProxy.pullPolicy=Never"]
        options = ("--create-namespace", "--skip-crds", "--wait", "--timeout=300s")
        sets = [word for one in settings for word in ("--set", one)]
        helm(kubeconfig, "upgrade", "--install", "eg", str(chart), "--namespace", NAMESPACE, *options, *sets)


def _write_values(chart: Path) -> None:
    template = Template((chart / "values.tmpl.yaml").read_text("utf-8"))
    text = template.substitute(GatewayImage=_CONTROLLER, GatewayImagePullPolicy="Never")
    (chart / "values.yaml").write_text(text, "utf-8")


def _proxy_image(layout: Layout) -> Path:
    """Envoy as PyPI has it, on our base: it needs the C library."""
    images.ensure_base(layout, images.BASE)
    with importlib.resources.as_file(importlib.resources.files("envoy._bin") / "envoy") as envoy:
        text = f'FROM {images.BASE}\nCOPY envoy /usr/local/bin/envoy\nUSER 65532:65532\nENTRYPOINT ["envoy"]\n'
        return images.of_files(layout, _PROXY, text, envoy)
