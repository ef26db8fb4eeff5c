"""Definitions of other projects' kinds, from their Go modules; e2e/binaries/manifests/go.mod pins the versions."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.binaries import MODULES
from e2e.cluster.processes import run

GATEWAY_API = ("sigs.k8s.io/gateway-api", "config/crd/standard")
INFERENCE_POOL = ("sigs.k8s.io/gateway-api-inference-extension", "config/crd/bases")
PROMETHEUS = ("github.com/prometheus-operator/prometheus-operator", "example/prometheus-operator-crd")


def files(of: tuple[str, str]) -> list[Path]:
    """The manifests of a module's folder. Raises ClusterError when it cannot be had."""
    module, folder = of
    told = json.loads(run("go", "-C", str(MODULES / "manifests"), "mod", "download", "-json", module))
    return sorted(file for file in (Path(told["Dir"]) / folder).glob("*.yaml") if file.name != "kustomization.yaml")
