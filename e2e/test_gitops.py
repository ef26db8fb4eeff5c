"""examples/teams as a GitOps controller applies it: two teams share a pool, nothing drifts, drift is put back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from e2e.cluster.errors import ClusterError
from e2e.kubectl import REPOSITORY, in_namespace, kubectl
from e2e.operating import operator
from e2e.polling import poll

pytestmark = pytest.mark.cluster
NAMESPACES = ("inference", "team-red", "team-blue")
MANAGER = "kustomize-controller"
# As Flux and Argo CD do: what they apply is theirs, and what others changed of it they take back.
TEAMS = f"--filename={REPOSITORY}/examples/teams"
AS_CONTROLLER = ("--server-side", "--force-conflicts", f"--field-manager={MANAGER}", TEAMS)


@pytest.fixture(scope="module")
def teams(kubeconfig: Path, api: client.ApiClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example applied, with an operator for its namespaces alone; both teams' models are accepted. No pod runs."""
    own = in_namespace(kubeconfig, NAMESPACES[0], tmp_path_factory.mktemp("gitops"))
    try:
        kubectl(own, "apply", *AS_CONTROLLER)
        kubectl(own, "create", "quota", "nothing-runs", "--hard=pods=0")
        with operator(own, AEGAEON_NAMESPACES=",".join(NAMESPACES)):
            for kind, name, namespace in (("gpool", "shared", "inference"), *TEAM_POOLS):
                kubectl(own, "-n", namespace, "wait", "--for=condition=Accepted", f"{kind}/{name}", "--timeout=240s")
            yield own
    finally:
        for namespace in reversed(NAMESPACES):
            # Where there are nodes, pods are drained first.
            kubectl(own, "delete", "namespace", namespace, "--timeout=240s", "--ignore-not-found")


TEAM_POOLS = (("mpool", "team-red", "team-red"), ("mpool", "team-blue", "team-blue"))


def test_what_a_gitops_controller_applied_does_not_drift_by_itself(teams: Path) -> None:
    kubectl(teams, "wait", "--for=create", "statefulset/shared-engine", "--timeout=240s")
    nothing_drifts(teams)
    before = versions(teams)
    kubectl(teams, "apply", *AS_CONTROLLER)
    assert versions(teams) == before, "an apply of the same changes nothing"


def test_a_persons_change_is_seen_as_drift_and_put_back(teams: Path) -> None:
    kubectl(teams, "patch", "gpool", "shared", "--type=merge", "-p", '{"spec": {"gateway": {"replicas": 5}}}')
    poll("the operator follows", lambda: gateways(teams) == 5, 90)
    difference = drift(teams)
    assert "-    replicas: 5" in difference
    assert "+    replicas: 2" in difference

    with pytest.raises(ClusterError, match=r'conflict with "kubectl-patch".*\.spec\.gateway\.replicas'):
        kubectl(teams, "apply", "--server-side", f"--field-manager={MANAGER}", TEAMS)
    kubectl(teams, "apply", *AS_CONTROLLER)

    nothing_drifts(teams)
    poll("the operator follows", lambda: gateways(teams) == 2, 90)


def test_a_field_that_git_does_not_have_stays_as_others_set_it(teams: Path) -> None:
    kubectl(teams, "patch", "gpool", "shared", "--type=merge", "-p", '{"spec": {"autoscaling": {"idle": "9m"}}}')
    nothing_drifts(teams)
    kubectl(teams, "apply", *AS_CONTROLLER)
    assert found(teams, "gpool", "shared", "inference")["spec"]["autoscaling"]["idle"] == "9m"


def test_a_team_whose_namespace_the_platform_takes_off_the_list_is_refused_until_it_is_back(teams: Path) -> None:
    kubectl(teams, "patch", "gpool", "shared", "--type=merge", "-p", '{"spec": {"allowedNamespaces": ["team-red"]}}')

    def reason(team: str) -> str:
        conditions = found(teams, "mpool", team, team).get("status", {}).get("conditions", ())
        return next((str(one["reason"]) for one in conditions if one["type"] == "Accepted"), "")

    poll("team blue is out", lambda: reason("team-blue") == "NamespaceNotAllowed", 90, lambda: reason("team-blue"))
    assert reason("team-red") in {"Accepted", "Applied"}
    kubectl(teams, "apply", *AS_CONTROLLER)
    poll("team blue is in", lambda: reason("team-blue") in {"Accepted", "Applied"}, 90, lambda: reason("team-blue"))


@pytest.mark.parametrize(
    ("verb", "group", "kind", "namespace", "allowed"),
    [
        ("update", "", "secrets", "team-red", True),
        ("get", "", "secrets", "team-blue", False),
        ("get", "", "secrets", "inference", False),
        ("update", "serving.aegaeon.io", "gpupools", "inference", False),
        ("update", "serving.aegaeon.io", "gpupools", "team-red", False),
    ],
)
def test_members_of_a_team_may_change_what_is_theirs_alone(
    teams: Path, api: client.ApiClient, verb: str, group: str, kind: str, namespace: str, allowed: bool
) -> None:
    """By the example's RoleBinding and the role that clusters have."""
    del teams  # applied
    asked = client.V1ResourceAttributes(group=group, namespace=namespace, resource=kind, verb=verb)
    spec = client.V1SubjectAccessReviewSpec(user="person", groups=["team-red"], resource_attributes=asked)
    review: Any = client.AuthorizationV1Api(api).create_subject_access_review(client.V1SubjectAccessReview(spec=spec))
    assert review.status.allowed is allowed


def nothing_drifts(kubeconfig: Path) -> None:
    """Once the operator has said what it makes of the last change: kubectl reads twice, and shows a status that was
    written in between as a difference."""
    poll("nothing differs", lambda: not drift(kubeconfig), 90, lambda: drift(kubeconfig))


def drift(kubeconfig: Path) -> str:
    """What another apply would change; kubectl's exit code 1 says that there is something."""
    try:
        return kubectl(kubeconfig, "diff", *AS_CONTROLLER)
    except ClusterError as error:
        return str(error)


def found(kubeconfig: Path, kind: str, name: str, namespace: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(kubectl(kubeconfig, "-n", namespace, "get", kind, name, "-o", "json"))
    return body


def versions(kubeconfig: Path) -> set[tuple[str, int]]:
    """Of the specs of all that was applied."""
    applied = (("gpool", "shared", "inference"), *TEAM_POOLS)
    return {
        (name, found(kubeconfig, kind, name, namespace)["metadata"]["generation"]) for kind, name, namespace in applied
    }


def gateways(kubeconfig: Path) -> int:
    return int(found(kubeconfig, "deployment", "shared-gateway", "inference")["spec"]["replicas"])
