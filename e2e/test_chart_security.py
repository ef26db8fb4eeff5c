"""Which pods pass the strictest level of Pod Security, asked of a real API server that enforces it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_objects import PLATFORM, gpu_pool, model_pool, observed

from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.platform import RedisAt
from e2e.cluster.errors import ClusterError
from e2e.kubectl import REPOSITORY, helm, kubectl

NAMESPACE = "aegaeon-restricted"
CLAIMS = {"models": {"path": "/srv/models", "claim": "models"}, "sharedClaim": "shared"}
EVERYTHING: dict[str, Any] = {"gateway": {"endpointPicker": {}}, "scheduling": {"standby": True}}
REDIS = replace(PLATFORM, redis=RedisAt("rediss://redis.system.svc:6379", Path("/password"), Path("/ca.crt")))


@pytest.fixture(scope="module")
def restricted(kubeconfig: Path) -> Iterator[Path]:
    """A cluster with a namespace that takes nothing less."""
    kubectl(kubeconfig, "create", "namespace", NAMESPACE)
    level = "pod-security.kubernetes.io/enforce=restricted"
    kubectl(kubeconfig, "label", "namespace", NAMESPACE, level)
    yield kubeconfig
    kubectl(kubeconfig, "delete", "namespace", NAMESPACE, "--timeout=240s")


def of_pool(name: str, **spec: Any) -> dict[str, Any]:
    """The pod template of a component, as decided for a pool."""
    seen = observed(gpu_pool(**EVERYTHING, **spec), model_pool("red", "llama"), platform=REDIS)
    kinds = ("Deployment", "StatefulSet")
    (found,) = (
        one for one in desired(seen).manifests if one["kind"] in kinds and one["metadata"]["name"] == f"pool-{name}"
    )
    template: dict[str, Any] = found["spec"]["template"]
    return template


def admit(server: Path, template: dict[str, Any]) -> None:
    """Raises ClusterError with what the server has against it."""
    spec = {name: value for name, value in template["spec"].items() if name != "serviceAccountName"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": spec}
    kubectl(server, "-n", NAMESPACE, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))


@pytest.mark.parametrize("name", ["scheduler", "standby", "gateway", "picker", "engine"])
def test_with_claims_for_its_files_every_pod_of_a_pool_passes(restricted: Path, name: str) -> None:
    admit(restricted, of_pool(name, volumes=CLAIMS))


@pytest.mark.parametrize("name", ["scheduler", "standby", "picker"])
def test_pods_without_node_files_pass_in_any_case(restricted: Path, name: str) -> None:
    admit(restricted, of_pool(name))


@pytest.mark.parametrize("name", ["gateway", "engine"])
def test_the_other_pods_are_refused_for_their_hostpath_volumes(restricted: Path, name: str) -> None:
    with pytest.raises(ClusterError, match="hostPath"):
        admit(restricted, of_pool(name))


def test_all_pods_of_the_chart_pass(restricted: Path) -> None:
    chart = str(REPOSITORY / "helm" / "aegaeon")
    options = ("--kube-version=1.35.4", "-n", NAMESPACE, "--set", "redis.bundled=true")
    rendered = [one for one in yaml.safe_load_all(helm(restricted, "template", "release", chart, *options)) if one]
    workloads = [one["spec"]["template"] for one in rendered if one["kind"] in ("Deployment", "StatefulSet")]
    pods = [one for one in rendered if one["kind"] == "Pod"]
    assert (len(workloads), len(pods)) == (2, 1)
    for template in (*workloads, *pods):
        admit(restricted, template)
