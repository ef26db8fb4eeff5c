"""The chart: every set of values that is allowed makes objects that a real API server takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from aegaeon_operator.config import from_environment
from aegaeon_operator.reconcile.cluster.platform import Egress
from e2e.cluster import definitions
from e2e.cluster.errors import ClusterError
from e2e.cluster.images import VERSION
from e2e.kubectl import REPOSITORY, define, helm, kubectl

CHART = REPOSITORY / "helm" / "aegaeon"
NAMESPACE = "aegaeon-chart"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
MATRIX: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "one namespace": {"operator": {"watchNamespaces": [NAMESPACE], "replicas": 1}},
    "monitored": {
        "metrics": {
            "monitors": True,
            "rules": True,
            "dashboard": True,
            "labels": {"release": "prometheus"},
            "namespaces": ["*"],
        },
    },
    "an API server on a port of its own": {"networkPolicy": {"apiServerPorts": [16443]}},
    "pools that go where they must alone": {"networkPolicy": {"poolEgress": True, "dnsPorts": [53, 5353]}},
    "CRDs installed separately": {"crds": {"install": False}, "networkPolicy": {"enabled": False}},
    "private registry": {
        "images": {"control": "registry.example:5000/a/control", "tag": "1.2", "pullSecrets": ["registry"]},
    },
    "pinned": {
        "images": {"control": f"registry.example:5000/a/control@{DIGEST}", "engine": "registry.example/engine:1.2"},
    },
    "deletion protection elsewhere": {"deletionProtection": {"enabled": False}},
    "placed": {
        "operator": {
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "infra", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "priorityClassName": "system-cluster-critical",
            "podAnnotations": {"a.example/b": "c"},
        },
        "nameOverride": "y",
    },
    "a redis that is there": {
        "redis": {"url": "rediss://redis.shared.svc:6379/2", "existingSecret": "redis", "caKey": "ca.pem"},
    },
    "a redis without a password": {"redis": {"url": "redis://redis.shared.svc:6379"}},
    "a redis of its own": {"redis": {"bundled": True}},
    "Gateways of istio": {"gateway": {"provider": "istio"}},
    "tested with a key": {
        "test": {"url": "http://demo-gateway.default:8000", "model": "llama", "keySecret": "demo-key"},
    },
}


@pytest.fixture(scope="module")
def server(kubeconfig: Path, api: client.ApiClient) -> Iterator[Path]:
    """With the definitions that monitors need."""
    define(kubeconfig, definitions.files(definitions.PROMETHEUS))
    kubectl(kubeconfig, "create", "namespace", NAMESPACE)
    yield kubeconfig
    kubectl(kubeconfig, "delete", "namespace", NAMESPACE)


@pytest.mark.parametrize("named", MATRIX)
def test_a_server_takes_what_the_chart_renders(server: Path, tmp_path: Path, named: str) -> None:
    rendered = _render(server, "-n", NAMESPACE, *_values(tmp_path, MATRIX[named]))

    taken = kubectl(server, "apply", "--dry-run=server", "-n", NAMESPACE, "-f", "-", stdin=rendered)

    assert taken.count("(server dry run)") == len(_objects(rendered))


def test_the_chart_lints_without_warnings(server: Path) -> None:
    output = helm(server, "lint", "--strict", str(CHART))

    assert "[ERROR]" not in output
    assert "[WARNING]" not in output


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"operator": {"replica": 3}}, "replica"),
        ({"operator": {"replicas": 0}}, "replicas"),
        ({"images": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"images": {"control": "registry.example/control@sha256:0123"}}, "control"),
        ({"operator": {"watchNamespaces": ["No_Namespace"]}}, "watchNamespaces"),
        ({"redis": {"url": "redis://:password@redis:6379"}}, "url"),
        ({"redis": {"url": "redis://redis:6379", "bundled": True}}, "exclude each other"),
        ({"gateway": {"provider": "gke"}}, "provider"),
    ],
)
def test_a_wrong_value_is_refused_by_name(server: Path, tmp_path: Path, values: dict[str, Any], named: str) -> None:
    with pytest.raises(ClusterError, match=named):
        _render(server, *_values(tmp_path, values))


@pytest.mark.parametrize(
    ("given", "tag", "rendered"),
    [
        ("control", "", f"control:{VERSION}"),
        ("registry.example:5000/a/control", "1.2", "registry.example:5000/a/control:1.2"),
        ("registry.example:5000/a/control:1.1", "1.2", "registry.example:5000/a/control:1.1"),
        (f"registry.example:5000/a/control@{DIGEST}", "1.2", f"registry.example:5000/a/control@{DIGEST}"),
        (f"control:1.1@{DIGEST}", "", f"control:1.1@{DIGEST}"),
    ],
)
def test_an_image_with_a_tag_or_a_digest_is_taken_as_it_is(
    server: Path, tmp_path: Path, given: str, tag: str, rendered: str
) -> None:
    values = {"images": {"control": given, "engine": given, "engineVllm": given, "tag": tag}}

    objects = _objects(_render(server, *_values(tmp_path, values)))

    pods = [one["spec"] for one in objects if one["kind"] == "Pod"]
    pods += [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    containers = [container for pod in pods for container in pod["containers"]]
    output = [one["value"] for container in containers for one in container["env"] if one["name"].endswith("_IMAGE")]
    assert {container["image"] for container in containers} == {rendered}
    assert output == [rendered] * 3


def test_restricted_to_a_namespace_the_operator_gets_no_cluster_roles(server: Path, tmp_path: Path) -> None:
    values = MATRIX["one namespace"]

    rendered = _render(server, "-n", NAMESPACE, *_values(tmp_path, values))

    assert not [one for one in _objects(rendered) if one["kind"].startswith("ClusterRole")]


def test_no_rule_has_a_wildcard(server: Path) -> None:
    rendered = _render(server, "-n", NAMESPACE)

    rules = [rule for one in _objects(rendered) if one["kind"].endswith("Role") for rule in one["rules"]]

    assert rules
    assert not [rule for rule in rules for words in rule.values() if "*" in words]


@pytest.mark.parametrize("namespaces", [["monitoring", "ops"], ["*"], []])
def test_the_operators_metrics_are_scraped_where_its_policy_lets_them_be(
    server: Path, tmp_path: Path, namespaces: list[str]
) -> None:
    values = {"metrics": {"monitors": True, "namespaces": namespaces}}

    objects = _objects(_render(server, "-n", NAMESPACE, *_values(tmp_path, values)))

    (deployment,) = (one for one in objects if one["kind"] == "Deployment")
    pod = deployment["spec"]["template"]
    labels = pod["metadata"]["labels"].items()
    monitors = [one["spec"] for one in objects if one["kind"] == "PodMonitor"]
    (monitor,) = (one for one in monitors if one["selector"]["matchLabels"].items() <= labels)
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert (monitor["namespaceSelector"], endpoint["honorLabels"]) == ({"matchNames": [NAMESPACE]}, True)
    assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    (policy,) = (one["spec"] for one in objects if one["kind"] == "NetworkPolicy")
    assert policy["podSelector"]["matchLabels"].items() <= labels
    rules = [rule for rule in policy["ingress"] if {"port": endpoint["port"]} in rule["ports"]]
    peers = [peer["namespaceSelector"]["matchLabels"] for rule in rules for peer in rule.get("from", ())]
    named = [name for labels in peers for name in labels.values()]
    assert (named or ["*"] * len(rules)) == namespaces


def test_the_operator_learns_the_ports_that_pools_may_reach(server: Path, tmp_path: Path) -> None:
    def variables(**values: Any) -> dict[str, str]:
        objects = _objects(_render(server, *_values(tmp_path, {"networkPolicy": values})))
        (found,) = (one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment")
        return {one["name"]: one.get("value", "") for one in found["containers"][0]["env"]}

    given = variables(poolEgress=True, apiServerPorts=[443, 16443], dnsPorts=[53, 5353])

    assert from_environment(given).platform.egress == Egress((443, 16443), (53, 5353))
    assert from_environment(variables()).platform.egress is None


def test_crds_stay_when_the_release_is_uninstalled(server: Path) -> None:
    rendered = _render(server)

    kept = [one["metadata"] for one in _objects(rendered) if one["kind"] == "CustomResourceDefinition"]

    assert {one["annotations"]["helm.sh/resource-policy"] for one in kept} == {"keep"}
    assert len(kept) == len(list((REPOSITORY / "crds").glob("*.yaml")))


def _render(server: Path, *words: str) -> str:
    # Helm built from its module takes itself for one of an old Kubernetes.
    return helm(server, "template", "release", str(CHART), "--kube-version=1.35.4", *words)


def _values(folder: Path, values: dict[str, Any]) -> tuple[str, str]:
    file = folder / "values.json"
    file.write_text(json.dumps(values), "utf-8")
    return "-f", str(file)


def _objects(rendered: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(rendered) if one]
