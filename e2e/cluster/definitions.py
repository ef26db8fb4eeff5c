"""Definitions of other projects' kinds, from their Go modules; e2e/binaries/*/go.mod pin the versions."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster.binaries import source

# What pins a version, the module, and the folder in it.
GATEWAY_API = ("manifests", "sigs.k8s.io/gateway-api", "config/crd/standard")
INFERENCE_POOL = ("manifests", "sigs.k8s.io/gateway-api-inference-extension", "config/crd/bases")
KEDA = ("keda", "github.com/kedacore/keda/v2", "config/crd/bases")
FLUX_SOURCES = ("manifests", "github.com/fluxcd/source-controller", "config/crd/bases")
FLUX_KUSTOMIZATIONS = ("manifests", "github.com/fluxcd/kustomize-controller", "config/crd/bases")
PROMETHEUS = ("manifests", "github.com/prometheus-operator/prometheus-operator", "example/prometheus-operator-crd")


def files(of: tuple[str, str, str]) -> list[Path]:
    """The manifests of a module's folder. Raises ClusterError when it cannot be had."""
    pinned_in, module, folder = of
    found = (source(pinned_in, module) / folder).glob("*.yaml")
    return sorted(file for file in found if file.name != "kustomization.yaml")
