"""What is counted of a pool after a look at it, for the operator's metrics: no decision is made of it."""

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
    """Pods of a component: as many as the operator asked for, and as many as are ready."""

    component: str
    wanted: int
    ready: int


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """Of one pool. `refused`: objects that the API server refuses, by kind."""

    readiness: tuple[Readiness, ...] = ()
    pods: tuple[PodCount, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)


def figures(observed: Observed, reports: Iterable[Report], failures: Mapping[ChildKey, str]) -> PoolFigures:
    """Of what was observed after the writes, and what is reported of it."""
    return PoolFigures(
        tuple(_readiness(one) for one in reports), _pods(observed), Counter(key.kind for key in failures)
    )


def _readiness(report: Report) -> Readiness:
    about = report.about
    unknown = {"status": "Unknown", "reason": "Unknown"}
    said: Json = next((one for one in report.status["conditions"] if one["type"] == "Ready"), unknown)
    return Readiness(about.kind, about.namespace, about.name, said["status"] == "True", said["reason"])


def _pods(observed: Observed) -> tuple[PodCount, ...]:
    """One for each workload: no component has both a Deployment and a StatefulSet."""
    components = {key: one["metadata"].get("labels", {}) for key, one in observed.children.items()}
    return tuple(
        PodCount(components[key].get("app.kubernetes.io/component", ""), one.asked, one.ready)
        for key, one in sorted(observed.workloads.items())
    )
