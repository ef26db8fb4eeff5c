"""What `kubectl get gpool,mpool` really prints for the statuses of every state: an API server evaluates the columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from operator_objects import NOW
from operator_state import State
from operator_states import STATES
from operator_table import rows

from e2e.kubectl import kubectl
from e2e.operating import API, apply, models, namespace_of, objects, operator, pool
from e2e.polling import poll

ALL = {state.title: state for states in STATES.values() for state in states}
SHOWN = "aegaeon-states"
_AGES = ("AGE", "ANSWERED")  # since when, as of now: the page has them as of another time
NO_NODE = "node-that-is-not-there"
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def shown(api: client.ApiClient, kubeconfig: Path) -> Iterator[Path]:
    """With a namespace where no controller writes statuses."""
    kubectl(kubeconfig, "create", "namespace", SHOWN)
    yield kubeconfig
    kubectl(kubeconfig, "delete", "namespace", SHOWN, "--timeout=240s")


@pytest.fixture
def custom(shown: Path, api: client.ApiClient) -> Iterator[client.CustomObjectsApi]:
    """Fifty states are too many for a kubectl for every step. What a test makes is gone behind it."""
    made = client.CustomObjectsApi(api)
    yield made
    for kind in ("gpupools", "modelpools"):
        made.delete_collection_namespaced_custom_object(*_where(kind))


@pytest.mark.parametrize("state", ALL.values(), ids=ALL)
def test_kubectl_prints_the_lines_of_the_page(shown: Path, custom: client.CustomObjectsApi, state: State) -> None:
    bodies = [body for body in state.bodies() if _is_taken(body)]
    assert bodies
    for body in bodies:
        where, name = _where(f"{body['kind'].lower()}s"), body["metadata"]["name"]
        custom.create_namespaced_custom_object(*where, _placed(body))
        custom.patch_namespaced_custom_object_status(*where, name, {"status": body["status"]})
    for body in bodies:
        printed = kubectl(shown, "-n", SHOWN, "get", body["kind"].lower(), body["metadata"]["name"])
        head, row = rows([body], NOW)
        row[0] = row[0].rpartition("/")[2]
        expected = dict(zip(head, row, strict=True))
        cells = _cells(printed, head)
        assert cells | dict.fromkeys(_AGES, "") == expected | dict.fromkeys(_AGES, "")
        assert bool(cells.get("ANSWERED")) is bool(expected.get("ANSWERED"))


def _where(kind: str) -> tuple[str, str, str, str]:
    group, version = API.split("/")
    return group, version, SHOWN, kind


def _is_taken(body: dict[str, Any]) -> bool:
    """The API server refuses what only an older definition let in."""
    conditions = body["status"]["conditions"]
    for_machines = ("Invalid", "KeyFileNotHere", "CredentialsFileNotHere")
    return not any(one["reason"] in for_machines for one in conditions)


def _placed(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {"name": body["metadata"]["name"]}, "status": {}}


def _cells(printed: str, head: list[str]) -> dict[str, str]:
    """By column: each begins where its head does."""
    first, line = printed.splitlines()
    starts = [first.index(name) for name in head]
    ends = [*starts[1:], len(line)]
    return {name: line[start:end].strip() for name, start, end in zip(head, starts, ends, strict=True)}


def _engines_ready(kubeconfig: Path) -> dict[str, str]:
    said = _named(kubeconfig, "gpool", "demo")[0].get("status", {}).get("conditions", ())
    return next((one for one in said if one["type"] == "EnginesReady"), {})


def test_the_operator_reports_why_pods_are_not_created(namespaced: Path) -> None:
    apply(namespaced, pool("demo", engines={"replicas": 1}), models("red", "demo", "llama"))
    with operator(namespaced):
        _poll_reason(namespaced, "PodsNotCreated")
        assert "exceeded quota: nothing-runs" in _engines_ready(namespaced)["message"]


def test_the_operator_reports_which_pod_does_not_start(namespaced: Path) -> None:
    kubectl(namespaced, "delete", "quota", "--all")
    nowhere = {"nodeSelector": {"kubernetes.io/hostname": NO_NODE}}  # for the cluster's scheduler, where it has one
    templates = {"podTemplate": nowhere, "controlPodTemplate": nowhere}
    apply(namespaced, pool("demo", engines={"replicas": 1}, **templates), models("red", "demo", "llama"))
    with operator(namespaced):
        poll("the controller makes the pod", lambda: _named(namespaced, "pods", "demo-engine-0"), 120)
        _bind(namespaced, "demo-engine-0")
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "desc = registry.example: no such host"}}
        container = {"name": "engine", "image": "registry.example/engine:2", "imageID": "", "restartCount": 0}
        status = {"containerStatuses": [{**container, "ready": False, "state": waiting}]}
        patch = ("patch", "pod/demo-engine-0", "--subresource=status", "-p", json.dumps({"status": status}))
        kubectl(namespaced, *patch)
        _poll_reason(namespaced, "ImageNotPulled")
        assert _engines_ready(namespaced)["message"] == (
            "0 of 1 engines are attached; demo-engine-0 cannot pull image registry.example/engine:2: "
            "registry.example: no such host"
        )
    # No kubelet ends it, and the pod garbage collector takes most of the minute that the namespace has.
    kubectl(namespaced, "delete", "statefulset", "--all", "--cascade=orphan")
    kubectl(namespaced, "delete", "pod", "--all", "--grace-period=0", "--force")


def _bind(kubeconfig: Path, pod: str) -> None:
    """As the scheduler does, to a node that is not there: no kubelet says how the pod fares."""
    target = {"apiVersion": "v1", "kind": "Node", "name": NO_NODE}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
    path = f"/api/v1/namespaces/{namespace_of(kubeconfig)}/pods/{pod}/binding"
    kubectl(kubeconfig, "create", "--raw", path, "-f", "-", stdin=json.dumps(binding))


def _poll_reason(kubeconfig: Path, reason: str) -> None:
    def seen() -> dict[str, str]:
        return _engines_ready(kubeconfig)

    poll(f"EnginesReady says {reason}", lambda: seen().get("reason") == reason, 60, lambda: str(seen()))


def _named(kubeconfig: Path, kind: str, name: str) -> list[dict[str, Any]]:
    return [one for one in objects(kubeconfig, kind) if one["metadata"]["name"] == name]
