"""Figures of a pool after a reconcile, for the operator's metrics; no decision depends on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Observed, Report


@dataclass(frozen=True, slots=True)
class Readiness:
    """The condition Ready of a GpuPool or ModelPool."""

    kind: str
    namespace: str
    name: str
    ready: bool
    reason: str


@dataclass(frozen=True, slots=True)
class PodCount:
    """Desired and ready pods of a component."""

    component: str
    desired: int
    ready: int


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """Figures of one pool. `refused`: number of objects that the API server refuses, by kind."""

    readiness: tuple[Readiness, ...] = ()
    pods: tuple[PodCount, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)


def figures(observed: Observed, reports: Iterable[Report], failures: Mapping[ChildKey, str]) -> PoolFigures:
    """Return the figures from the state after the writes and from the reports."""
    return PoolFigures(
        tuple(_readiness(report) for report in reports), _pods(observed), Counter(key.kind for key in failures)
    )


def _readiness(report: Report) -> Readiness:
    about = report.about
    unknown = {"status": "Unknown", "reason": "Unknown"}
    ready: Json = next((entry for entry in report.status["conditions"] if entry["type"] == "Ready"), unknown)
    return Readiness(about.kind, about.namespace, about.name, ready["status"] == "True", ready["reason"])


def _pods(observed: Observed) -> tuple[PodCount, ...]:
    """Return an entry for each workload: no component has both a Deployment and a StatefulSet."""
    labels = {key: manifest["metadata"].get("labels", {}) for key, manifest in observed.children.items()}
    return tuple(
        PodCount(labels[key].get("app.kubernetes.io/component", ""), workload.desired, workload.ready)
        for key, workload in sorted(observed.workloads.items())
    )
