"""Pods on a platform that gives them their users, as OpenShift's restricted-v2 does: a real API server refuses others.

Pod Security "restricted" with a policy that takes no user, no group and no folder of a node from a pod's manifest.
"""

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
from e2e.cluster.errors import ClusterError
from e2e.kubectl import REPOSITORY, helm, kubectl
from e2e.polling import poll

Json = dict[str, Any]
NAMESPACE, POLICY = "aegaeon-platform", "platform-users"
CLAIMS = {"models": {"path": "/srv/models", "claim": "models"}, "sharedClaim": "shared"}
EVERYTHING: Json = {"gateway": {"endpointPicker": {}}, "scheduling": {"standby": True}, "volumes": CLAIMS}
COMPONENTS = ("scheduler", "standby", "gateway", "picker", "engine")
_NO_USER = "!has({0}.securityContext) || (!has({0}.securityContext.runAsUser) && !has({0}.securityContext.runAsGroup))"
_ALL = "!has(object.spec.{0}) || object.spec.{0}.all(container, {1})"
RULES = {
    _NO_USER.format("object.spec"): "the pod names a user",
    "!has(object.spec.securityContext) || !has(object.spec.securityContext.fsGroup)": "the pod names a group",
    _ALL.format("containers", _NO_USER.format("container")): "a container names a user",
    _ALL.format("initContainers", _NO_USER.format("container")): "an init container names a user",
    "!has(object.spec.volumes) || object.spec.volumes.all(volume, !has(volume.hostPath))": "a folder of the node",
}


def policy() -> list[Json]:
    """The policy and its binding to the namespace."""
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": POLICY}}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    rules = {
        "matchConstraints": {"resourceRules": [pods]},
        "validations": [{"expression": rule, "message": message} for rule, message in RULES.items()],
    }
    selected = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}}
    bound = {"policyName": POLICY, "validationActions": ["Deny"], "matchResources": selected}
    return [
        {**head, "kind": "ValidatingAdmissionPolicy", "spec": rules},
        {**head, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound},
    ]


@pytest.fixture(scope="module")
def platform(kubeconfig: Path) -> Iterator[Path]:
    """A cluster whose namespace has both."""
    kubectl(kubeconfig, "create", "namespace", NAMESPACE)
    kubectl(kubeconfig, "label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    kubectl(kubeconfig, "apply", "-f", "-", stdin=yaml.safe_dump_all(policy()))
    poll("the policy is enforced", lambda: _refuses(kubeconfig), 60)
    yield kubeconfig
    kubectl(kubeconfig, "delete", "-f", "-", stdin=yaml.safe_dump_all(policy()))
    kubectl(kubeconfig, "delete", "namespace", NAMESPACE, "--timeout=60s")


def _refuses(server: Path) -> bool:
    try:
        admit(server, of_pool("scheduler", fixed_user=True))
    except ClusterError:
        return True
    return False


def of_pool(name: str, fixed_user: bool) -> Json:
    """The pod template of a component, as decided for a pool."""
    observation = observed(gpu_pool(**EVERYTHING), model_pool("red", "llama"))
    manifests = desired(replace(observation, platform=replace(PLATFORM, fixed_user=fixed_user))).manifests
    workloads = (manifest for manifest in manifests if manifest["kind"] in ("Deployment", "StatefulSet"))
    (workload,) = (manifest for manifest in workloads if manifest["metadata"]["name"] == f"pool-{name}")
    template: Json = workload["spec"]["template"]
    return template


def of_chart(server: Path, security_context: str) -> list[Json]:
    """The pod templates of the chart."""
    options = ("--kube-version=1.35.4", "-n", NAMESPACE, "--set", f"securityContext={security_context}")
    chart = str(REPOSITORY / "helm" / "aegaeon")
    rendered = yaml.safe_load_all(helm(server, "template", "release", chart, *options, "--set", "redis.bundled=true"))
    objects = [body for body in rendered if body]
    workloads = [body["spec"]["template"] for body in objects if body["kind"] in ("Deployment", "StatefulSet")]
    return [*workloads, *(body for body in objects if body["kind"] == "Pod")]


def admit(server: Path, template: Json) -> None:
    """Raises ClusterError with what the server has against it."""
    spec = {name: value for name, value in template["spec"].items() if name != "serviceAccountName"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": spec}
    kubectl(server, "-n", NAMESPACE, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_pod_of_a_pool_passes_when_the_platform_gives_its_user(platform: Path, name: str) -> None:
    admit(platform, of_pool(name, fixed_user=False))


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_pod_with_a_user_of_its_own_is_refused(platform: Path, name: str) -> None:
    with pytest.raises(ClusterError, match="names a user"):
        admit(platform, of_pool(name, fixed_user=True))


def test_all_pods_of_the_chart_pass_when_the_platform_gives_their_users(platform: Path) -> None:
    templates = of_chart(platform, "platform")
    assert len(templates) == 3
    for template in templates:
        admit(platform, template)


def test_the_operators_pod_is_refused_with_a_user_of_its_own(platform: Path) -> None:
    with pytest.raises(ClusterError, match="names a user"):
        admit(platform, of_chart(platform, "fixed")[0])
