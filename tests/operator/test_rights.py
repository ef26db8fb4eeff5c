"""What the operator and the picker may do in a cluster is what their code calls: no right is missing, none is over."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from aegaeon_kube import lease
from aegaeon_operator.kube.client import CHILDREN, EVENTS, GPU_POOLS, ISTIO, MODEL_POOLS, NODES, PODS, Resource
from aegaeon_picker import watch

RULES: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "operator/aegaeon_operator/kube/rbac.yaml").read_text("utf-8")
)
# list and watch: what there is. get: whose an object of that name is. create and patch: server-side apply.
# delete: what is wanted no more.
OF_CHILDREN = ("get", "list", "watch", "create", "patch", "delete")
Right = tuple[str, str, str]
LEASE = {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}


def granted(part: str) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in RULES[part]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rights(resources: Iterable[Resource], *verbs: str, suffix: str = "") -> set[Right]:
    return {(one.group, one.plural + suffix, verb) for one in resources for verb in verbs}


def test_the_operator_has_the_rights_it_uses_and_no_others() -> None:
    kinds = (GPU_POOLS, MODEL_POOLS)
    assert granted("namespaced") == (
        rights(CHILDREN, *OF_CHILDREN)
        | rights(kinds, "list", "watch")
        | rights(kinds, "patch", suffix="/status")
        | rights(kinds, "update", suffix="/finalizers")
        | rights((PODS,), "list", "watch")
        | rights((PODS,), "create", suffix="/eviction")
        | rights((EVENTS,), "list", "create")
    )
    assert granted("cluster") == rights((NODES,), "list")
    assert granted("istio") == rights(ISTIO, *OF_CHILDREN)
    assert granted("own") == LEASE | rights((PODS,), "list") | rights((PODS,), "create", suffix="/eviction")


def test_a_scheduler_may_have_a_lease() -> None:
    assert granted("scheduler") == LEASE
    assert lease.LEASES.startswith("/apis/coordination.k8s.io/v1/")


def test_the_picker_may_read_the_pool_and_its_pods() -> None:
    assert granted("picker") == {
        ("inference.networking.k8s.io", "inferencepools", "get"),
        ("", "pods", "list"),
        ("", "pods", "watch"),
    }
    assert watch.POOLS.startswith("/apis/inference.networking.k8s.io/v1/")
    assert watch.PODS.startswith("/api/v1/")
