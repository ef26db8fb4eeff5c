"""Definitions of other projects' kinds, from their Go modules; e2e/binaries/manifests/go.mod pins the versions."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster.binaries import source

GATEWAY_API = ("sigs.k8s.io/gateway-api", "config/crd/standard")
INFERENCE_POOL = ("sigs.k8s.io/gateway-api-inference-extension", "config/crd/bases")
KEDA = ("github.com/kedacore/keda/v2", "config/crd/bases")
FLUX_SOURCES = ("github.com/fluxcd/source-controller", "config/crd/bases")
FLUX_KUSTOMIZATIONS = ("github.com/fluxcd/kustomize-controller", "config/crd/bases")
PROMETHEUS = ("github.com/prometheus-operator/prometheus-operator", "example/prometheus-operator-crd")


def files(of: tuple[str, str]) -> list[Path]:
    """The manifests of a module's folder. Raises ClusterError when it cannot be had."""
    module, folder = of
    found = (source("manifests", module) / folder).glob("*.yaml")
    return sorted(file for file in found if file.name != "kustomization.yaml")
