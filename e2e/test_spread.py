"""Pods of control components lie on different nodes, also after upgrades: a real scheduler, nodes without kubelets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from operator_objects import gpu_pool, model_pool, observed

from aegaeon_operator.reconcile.cluster.desired import desired
from e2e.cluster.layout import Layout
from e2e.fake_nodes import LABEL, fake_nodes, scheduling
from e2e.kubectl import CHART, helm, kubectl
from e2e.polling import poll

NAMESPACE = "aegaeon-spread"
# One node has far more free than the other: nothing but the constraint speaks for that one.
CPUS = {"fake-large": 64, "fake-small": 2}
UPGRADES = 3
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]


@pytest.fixture(scope="module")
def server(kubeconfig: Path, control_plane: Layout, api: client.ApiClient) -> Iterator[Path]:
    """With a scheduler of pods, which a cluster without nodes has none of."""
    with scheduling(control_plane), fake_nodes(api, NAMESPACE, CPUS):
        kubectl(kubeconfig, "create", "namespace", NAMESPACE)
        yield kubeconfig
        kubectl(kubeconfig, "delete", "namespace", NAMESPACE, "--timeout=240s")


def of_pool(component: str) -> dict[str, Any]:
    """A Deployment as the operator wants it."""
    seen = observed(gpu_pool(gateway={"replicas": 2, "endpointPicker": {"replicas": 2}}), model_pool("red", "llama"))
    return _named(list(desired(seen).manifests), f"pool-{component}")


def of_chart(server: Path) -> dict[str, Any]:
    """The operator's own."""
    rendered = helm(server, "template", "release", CHART, "--kube-version=1.35.4")
    return _named([one for one in yaml.safe_load_all(rendered) if one], "release-operator")


def _named(manifests: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (one for one in manifests if one["kind"] == "Deployment" and one["metadata"]["name"] == name)
    return found


DEPLOYMENTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "gateway": lambda _: of_pool("gateway"),
    "picker": lambda _: of_pool("picker"),
    "operator": of_chart,
}


@pytest.mark.parametrize("which", DEPLOYMENTS)
def test_two_pods_are_on_two_nodes_after_every_upgrade(server: Path, which: str) -> None:
    deployment = placed(DEPLOYMENTS[which](server))
    name = f"deployment/{deployment['metadata']['name']}"
    for upgrade in range(1 + UPGRADES):
        template = deployment["spec"]["template"]
        template["metadata"]["annotations"] = {"upgrade": str(upgrade)}
        kubectl(server, "-n", NAMESPACE, "apply", "--server-side", "-f", "-", stdin=json.dumps(deployment))
        kubectl(server, "-n", NAMESPACE, "rollout", "status", name, "--timeout=240s")
        poll("the old pods are gone", lambda: len(nodes(server, deployment)) == 2, 60)

        assert len(set(nodes(server, deployment))) == 2, f"both on one node after {upgrade} upgrades"


def placed(deployment: dict[str, Any]) -> dict[str, Any]:
    """On the fake nodes, in this namespace, with what every namespace has."""
    deployment["metadata"].pop("namespace", None)
    deployment["metadata"].pop("ownerReferences", None)
    pod = deployment["spec"]["template"]["spec"]
    pod.pop("serviceAccountName", None)
    pod["nodeSelector"] = LABEL
    return deployment


def nodes(server: Path, deployment: dict[str, Any]) -> list[str]:
    """Of its pods, those on their way out included."""
    labels = ",".join(f"{name}={value}" for name, value in deployment["spec"]["selector"]["matchLabels"].items())
    found = json.loads(kubectl(server, "-n", NAMESPACE, "get", "pods", "-l", labels, "-o", "json"))["items"]
    return [one["spec"].get("nodeName", "") for one in found]
