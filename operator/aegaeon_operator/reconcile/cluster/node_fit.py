"""Fit of a pod on a node by the node's state, taints and labels, without its free resources."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from aegaeon_operator.reconcile.cluster.facts import Json

_KEEPS_OUT = ("NoSchedule", "NoExecute")
_MATCHES: dict[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _number(value) > _number(values[0]),
    "Lt": lambda value, values: _number(value) < _number(values[0]),
}


def takes(node: Json, pod: Json) -> bool:
    """Return whether a node is ready, schedulable, tolerated by a pod and matched by its selector and affinity."""
    spec = pod["spec"]
    return _is_schedulable(node) and _is_tolerated(node, spec.get("tolerations") or ()) and _is_chosen(node, spec)


def _is_schedulable(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    ready = any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
    return ready and not node["spec"].get("unschedulable") and "deletionTimestamp" not in node["metadata"]


def _is_tolerated(node: Json, tolerations: Iterable[Json]) -> bool:
    taints = [taint for taint in node["spec"].get("taints") or () if taint["effect"] in _KEEPS_OUT]
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _is_chosen(node: Json, spec: Json) -> bool:
    labels = node["metadata"].get("labels") or {}
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    fields = {"metadata.name": node["metadata"]["name"]}
    return required is None or any(
        _meets(labels, term.get("matchExpressions")) and _meets(fields, term.get("matchFields"))
        for term in required["nodeSelectorTerms"]
    )


def _number(text: str | None) -> float:
    """Return an integer, or NaN, which is neither above nor below any number."""
    return int(text) if text and text.removeprefix("-").isdecimal() else math.nan


def _meets(values: Mapping[str, str], requirements: Iterable[Json] | None) -> bool:
    return all(
        _MATCHES[each["operator"]](values.get(each["key"]), each.get("values") or []) for each in requirements or ()
    )
