"""Kubernetes and its company, built from Go modules once and kept; e2e/binaries/*/go.mod pin the versions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import click

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import cache_folder
from e2e.cluster.processes import run

MODULES = Path(__file__).parents[1] / "binaries"
# Name of a binary: the module that pins it, and the package. Binaries of a module are compiled together, and what they
# have in common once: Kubernetes, Helm and CoreDNS share the client of Kubernetes and its kinds.
_BINARIES = {
    "etcd": ("kubernetes", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kube-proxy": ("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
    "kubelet": ("kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    "coredns": ("kubernetes", "./coredns"),
    "helm": ("kubernetes", "helm.sh/helm/v4/cmd/helm"),
    "envoy-gateway": ("envoy-gateway", "github.com/envoyproxy/gateway/cmd/envoy-gateway"),
    "pilot-discovery": ("istio", "istio.io/istio/pilot/cmd/pilot-discovery"),
    "pilot-agent": ("istio", "istio.io/istio/pilot/cmd/pilot-agent"),
    "keda-operator": ("keda", "github.com/kedacore/keda/v2/cmd/operator"),
    "keda-adapter": ("keda", "github.com/kedacore/keda/v2/cmd/adapter"),
    "keda-webhooks": ("keda", "github.com/kedacore/keda/v2/cmd/webhooks"),
    "kueue": ("kueue", "sigs.k8s.io/kueue/cmd/kueue"),
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
KEDA = ("keda-operator", "keda-adapter", "keda-webhooks")
KUEUE = "kueue"
CONFORMANCE = ("inference-conformance", "echo-basic")
REFERENCE_PICKER = "reference-picker"
MONITORING = ("promtool", "prometheus")
# What a cluster without nodes needs; the scheduler runs there for e2e/test_spread.py alone.
API = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")
# And one with nodes; the rest is built for the tests that need it.
ALL = (*API, "kube-proxy", "kubelet", "coredns")
# No debugger is used on them: the compiler writes no tables for one, the linker neither those nor symbols. All are
# static, since some run in images without libraries, and packages are compiled once for all.
_COMPILE = ("-trimpath", "-gcflags=all=-dwarf=false")
_ENVIRONMENT = {"GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"}


def build(names: tuple[str, ...] = ALL) -> Path:
    """The folder of the binaries, after building what is missing. Raises ClusterError."""
    if shutil.which("go") is None:
        raise ClusterError("Go is needed to build Kubernetes and was not found; install Go 1.25 or newer")
    folder = cache_folder() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if not _stamp(name).exists()]
    for together in _commands(missing):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _build(together, Path(scratch))
            for name in together:
                (Path(scratch) / _executable(name)).rename(folder / name)
        for name in together:
            for old in folder.glob(f".{name}-*"):
                old.unlink()
            _stamp(name).touch()
    return folder


def _commands(names: list[str]) -> list[list[str]]:
    """Which binaries one call of Go makes: those of a module with the same tags."""
    groups: dict[tuple[str, str, bool], list[str]] = {}
    for name in names:
        groups.setdefault((_BINARIES[name][0], _TAGS.get(name, ""), name in _SUITES), []).append(name)
    return list(groups.values())


def find(name: str) -> Path | None:
    """A binary that was built before; None: it was not, or of other modules."""
    return _stamp(name).with_name(name) if _stamp(name).exists() else None


def source(pinned_in: str, module: str) -> Path:
    """The folder of a Go module, of the version in e2e/binaries/`pinned_in`. Raises ClusterError."""
    return Path(json.loads(run("go", "-C", str(MODULES / pinned_in), "mod", "download", "-json", module))["Dir"])


def _stamp(name: str) -> Path:
    """It is there when the binary is, and is of these modules."""
    return cache_folder() / "bin" / f".{name}-{_fingerprint(MODULES / _BINARIES[name][0])}"


def _build(names: list[str], folder: Path) -> None:
    """Binaries of one module, under the names that Go gives them."""
    began = time.monotonic()
    module = MODULES / _BINARIES[names[0]][0]
    click.echo(f"building {', '.join(names)} (once; minutes when Go's cache is cold)", err=True)
    verb = ["test", "-c"] if names[0] in _SUITES else ["build"]
    linker = f"-ldflags=-s -w {_version_flags(module)}".strip()
    done = subprocess.run(
        ["go", *verb, *_COMPILE, f"-tags={_TAGS.get(names[0], '')}", linker, "-o", f"{folder}/"]
        + [_BINARIES[name][1] for name in names],
        cwd=module,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **_ENVIRONMENT},
    )
    if done.returncode:
        raise ClusterError(f"{', '.join(names)}: Go says\n{done.stderr[-3000:]}")
    click.echo(f"  {time.monotonic() - began:.0f} s", err=True)


def _executable(name: str) -> str:
    """What Go calls it: the last part of the package that is no version; a suite has a suffix."""
    *_, before, last = _BINARIES[name][1].split("/")
    return (before if re.fullmatch(r"v\d+", last) else last) + (".test" if name in _SUITES else "")


def _version_flags(module: Path) -> str:
    """Kubernetes learns its version from the linker; without it clients see v0.0.0."""
    found = re.search(r"k8s.io/kubernetes v(\d+)\.(\d+)\.(\d+)", (module / "go.mod").read_text("utf-8"))
    if found is None:
        return ""
    major, minor, patch = found.groups()
    at = "-X k8s.io/component-base/version"
    return f"{at}.gitVersion=v{major}.{minor}.{patch} {at}.gitMajor={major} {at}.gitMinor={minor}"


def _fingerprint(module: Path) -> str:
    files = [module / "go.mod", module / "go.sum", *sorted(module.rglob("*.go"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
