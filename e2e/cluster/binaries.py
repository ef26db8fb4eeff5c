"""Kubernetes and its company, built from Go modules once and kept; e2e/binaries/*/go.mod pin the versions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import click

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import cache_folder
from e2e.cluster.processes import run

MODULES = Path(__file__).parents[1] / "binaries"
# Name of a binary: the module that pins it, and the package.
_BINARIES = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kube-proxy": ("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
    "kubelet": ("kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    "coredns": ("coredns", "github.com/coredns/coredns"),
    "helm": ("helm", "helm.sh/helm/v4/cmd/helm"),
    "envoy-gateway": ("envoy-gateway", "github.com/envoyproxy/gateway/cmd/envoy-gateway"),
    "pilot-discovery": ("istio", "istio.io/istio/pilot/cmd/pilot-discovery"),
    "pilot-agent": ("istio", "istio.io/istio/pilot/cmd/pilot-agent"),
    "inference-conformance": ("conformance", "sigs.k8s.io/gateway-api-inference-extension/conformance"),
    "echo-basic": ("conformance", "sigs.k8s.io/gateway-api/conformance/echo-basic"),
    "reference-picker": ("reference-picker", "sigs.k8s.io/gateway-api-inference-extension/cmd/epp"),
    "promtool": ("prometheus", "github.com/prometheus/prometheus/cmd/promtool"),
    "prometheus": ("prometheus", "github.com/prometheus/prometheus/cmd/prometheus"),
}
# Clients of twenty clouds that scrape nothing here stay out of Prometheus; Istio's agent needs few of its controllers.
_TAGS = {"promtool": "remove_all_sd", "prometheus": "remove_all_sd", "pilot-agent": "agent"}
# Test suites, compiled to programs.
_SUITES = ("inference-conformance",)
ISTIO = ("pilot-discovery", "pilot-agent")
CONFORMANCE = ("inference-conformance", "echo-basic")
REFERENCE_PICKER = "reference-picker"
MONITORING = ("promtool", "prometheus")
# What runs in an image of its own, without the machine's libraries; and what shares Go's cache with it.
_STATIC = ("coredns", "envoy-gateway", *ISTIO, *CONFORMANCE, REFERENCE_PICKER)
# What a cluster without nodes needs; the scheduler runs there for e2e/test_spread.py alone.
API = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")
# And one with nodes; the rest is built for the tests that need it.
ALL = (*API, "kube-proxy", "kubelet", "coredns")


def build(names: tuple[str, ...] = ALL) -> Path:
    """The folder of the binaries, after building what is missing. Raises ClusterError."""
    if shutil.which("go") is None:
        raise ClusterError("Go is needed to build Kubernetes and was not found; install Go 1.25 or newer")
    folder = cache_folder() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        module, package = _BINARIES[name]
        stamp = _stamp(name)
        if not stamp.exists():
            _build(MODULES / module, package, folder / name)
            for old in folder.glob(f".{name}-*"):
                old.unlink()
            stamp.touch()
    return folder


def find(name: str) -> Path | None:
    """A binary that was built before; None: it was not, or of other modules."""
    return _stamp(name).with_name(name) if _stamp(name).exists() else None


def source(pinned_in: str, module: str) -> Path:
    """The folder of a Go module, of the version in e2e/binaries/`pinned_in`. Raises ClusterError."""
    return Path(json.loads(run("go", "-C", str(MODULES / pinned_in), "mod", "download", "-json", module))["Dir"])


def _stamp(name: str) -> Path:
    """It is there when the binary is, and is of these modules."""
    return cache_folder() / "bin" / f".{name}-{_fingerprint(MODULES / _BINARIES[name][0])}"


def _build(module: Path, package: str, binary: Path) -> None:
    began = time.monotonic()
    click.echo(f"building {binary.name} (once; minutes when Go's cache is cold)", err=True)
    verb = ["test", "-c"] if binary.name in _SUITES else ["build"]
    flags = ["-trimpath", f"-tags={_TAGS.get(binary.name, '')}", "-ldflags", f"-s -w {_version_flags(module)}".strip()]
    environment = {**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false"}
    done = subprocess.run(
        ["go", *verb, *flags, "-o", str(binary), package],
        cwd=module,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "CGO_ENABLED": "0"} if binary.name in _STATIC else environment,
    )
    if done.returncode:
        raise ClusterError(f"{binary.name} does not build:\n{done.stderr[-3000:]}")
    click.echo(f"  {binary.name}: {time.monotonic() - began:.0f} s", err=True)


def _version_flags(module: Path) -> str:
    """Kubernetes learns its version from the linker; without it clients see v0.0.0."""
    found = re.search(r"k8s.io/kubernetes v(\d+)\.(\d+)\.(\d+)", (module / "go.mod").read_text("utf-8"))
    if found is None:
        return ""
    major, minor, patch = found.groups()
    at = "-X k8s.io/component-base/version"
    return f"{at}.gitVersion=v{major}.{minor}.{patch} {at}.gitMajor={major} {at}.gitMinor={minor}"


def _fingerprint(module: Path) -> str:
    digest = hashlib.sha256((module / "go.mod").read_bytes() + (module / "go.sum").read_bytes())
    return digest.hexdigest()[:16]
