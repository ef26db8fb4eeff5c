"""The statuses of a GpuPool and its ModelPools, from what was observed and what could not be applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aegaeon_operator.reconcile.cluster import model_checks
from aegaeon_operator.reconcile.cluster.conditions import Condition, message_of, no, summary, written
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Live, ModelFacts, Observed, Report
from aegaeon_operator.reconcile.cluster.model_states import able, model_states
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, selector
from aegaeon_operator.reconcile.cluster.outside import memory_reserved, outside_slabs
from aegaeon_operator.reconcile.cluster.pool_checks import applied, progressing
from aegaeon_operator.reconcile.cluster.readiness import (
    Engines,
    degraded,
    deployment_ready,
    engines,
    engines_ready,
    gateway_ready,
    scheduler_ready,
    workload_of,
)
from aegaeon_operator.reconcile.cluster.redundancy import redundant
from aegaeon_operator.reconcile.cluster.served import Served
from aegaeon_operator.reconcile.cluster.suspects import device_suspect
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec
from aegaeon_operator.spec.status import MOST_NAMES

Failures = Mapping[ChildKey, str]


def reports(observed: Observed, wanted: Desired, failures: Failures) -> list[Report]:
    """One for each object that is there."""
    return Reports().of(observed, wanted, failures)


@dataclass(slots=True)
class Reports:
    """Of one pool. What was reported of a ModelPool stands for as long as nothing that it is made from changes."""

    _known: dict[str, tuple[Served, Report]] = field(default_factory=dict)

    def of(self, observed: Observed, wanted: Desired, failures: Failures) -> list[Report]:
        """One for each object that is there."""
        before, self._known = self._known, {}
        for served in Served.each(observed, wanted, failures):
            known = before.get(served.pool.uid)
            same = known is not None and known[0] == served
            self._known[served.pool.uid] = known if known and same else (served, _model_pool(served))
        found = [report for _, report in self._known.values()]
        if observed.gpu_pool:
            states = [one for report in found for one in report.status["models"]]
            found.append(_gpu_pool(observed, wanted, observed.gpu_pool, failures, states))
        return found


# ---- GpuPool -------------------------------------------------------------------------------------------------------


def _gpu_pool(
    observed: Observed, wanted: Desired, pool: Live[GpuPool], failures: Failures, states: list[Json]
) -> Report:
    if pool.value is None:
        return _refused(observed, pool)
    spec = pool.value.spec
    found = engines(observed, spec)
    conditions = _pool_conditions(observed, spec, found, failures)
    unified = workload_of(observed, "StatefulSet", COMPONENTS["unified"])
    component = COMPONENTS["unified"] if spec.engines else COMPONENTS["decode"]
    outside = outside_slabs(observed)
    return Report(
        pool,
        {
            "observedGeneration": pool.generation,
            "conditions": written(pool, conditions, observed.now),
            "message": message_of(conditions),
            "replicas": unified.pods if unified else 0,
            "selector": ",".join(f"{name}={value}" for name, value in selector(observed.key, component).items()),
            "engines": {role: str(one) for role, one in found.items()},
            "readyEngines": sum(one.attached for one in found.values()),
            "models": len(wanted.attached.models),
            "names": _names(wanted),
            "summary": able(states),
            "gpus": {"used": _used(spec, found), "dedicated": _dedicated(observed, wanted, spec)},
            **({"outsideSlabs": outside} if outside else {}),
            **_last_answered(observed, pool),
        },
    )


def _refused(observed: Observed, pool: Live[GpuPool]) -> Report:
    """Of a spec that cannot be used. Its pods go on serving their last configuration: the last count of models protects
    it from deletion."""
    conditions = [no("Accepted", "Invalid", "; ".join(pool.problems))]
    conditions.append(summary(conditions, ("Accepted",)))
    return Report(
        pool,
        {
            "observedGeneration": pool.generation,
            "conditions": written(pool, conditions, observed.now),
            "message": message_of(conditions),
            "models": pool.status.get("models", 0) if observed.model_pools else 0,
        },
    )


def _pool_conditions(
    observed: Observed, spec: GpuPoolSpec, found: Mapping[str, Engines], failures: Failures
) -> list[Condition]:
    conditions = [
        applied(observed, failures),
        scheduler_ready(observed, spec),
        engines_ready(observed, spec, found),
        gateway_ready(observed, spec.gateway.replicas),
    ]
    picker = spec.gateway.endpoint_picker
    if picker and picker.service is None:
        conditions.append(deployment_ready(observed, "PickerReady", "picker", picker.replicas))
    parts = list(conditions)
    conditions.append(summary(conditions, tuple(one.type for one in conditions)))
    conditions.append(progressing(conditions, _rolling(observed)))
    conditions += [degraded(observed, parts), device_suspect(observed), memory_reserved(observed)]
    conditions += redundant(observed, spec)
    return conditions


def _last_answered(observed: Observed, pool: Live[GpuPool]) -> Json:
    """A scheduler knows of nothing before its start, and its clock may be ahead."""
    at = observed.scheduler.answered_at if observed.scheduler else 0
    new = _stamp(datetime.fromtimestamp(at, UTC)) if at else ""
    newest = min(max(new, pool.status.get("lastAnswered", "")), _stamp(observed.now))
    return {"lastAnswered": newest} if newest else {}


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _names(wanted: Desired) -> dict[str, str]:
    """Who serves what, for the admission of other ModelPools."""
    held = sorted(wanted.attached.names.items())[:MOST_NAMES]
    return {name: f"{owner.namespace}/{owner.name}" for name, owner in held}


def _used(spec: GpuPoolSpec, found: Mapping[str, Engines]) -> int:
    return sum(one.wanted for one in found.values()) * spec.accelerator.count if spec.has_accelerators else 0


def _dedicated(observed: Observed, wanted: Desired, spec: GpuPoolSpec) -> int:
    """One accelerator for each model, more for one that does not fit. Its weights are known as each rank has them."""
    facts = observed.scheduler.models if observed.scheduler else {}
    count = spec.accelerator.count
    sizes = (facts.get(name, ModelFacts()).weight_bytes * count for name in wanted.attached.models)
    device = spec.memory.device_bytes
    return sum(1 if device is None else max(1, -(-size // device)) for size in sizes)


def _rolling(observed: Observed) -> str:
    """Workloads that are being replaced, by name."""
    return ", ".join(sorted(key.name for key, one in observed.workloads.items() if one.rolling))


# ---- ModelPool -----------------------------------------------------------------------------------------------------


def _model_pool(served: Served) -> Report:
    pool = served.pool
    states = model_states(served)
    conditions = _model_pool_conditions(served)
    return Report(
        pool,
        {
            "observedGeneration": pool.generation,
            "conditions": written(pool, conditions, served.now),
            "message": message_of(conditions),
            "models": states,
            "summary": able(states),
        },
    )


def _model_pool_conditions(served: Served) -> list[Condition]:
    fit = model_checks.fits(served)
    conditions = [
        model_checks.accepted(served),
        model_checks.artifacts(served),
        fit,
        model_checks.reachable(served),
        model_checks.degraded(served),
    ]
    never = ("Admitted",) if fit.reason == "ModelTooLarge" else ()
    conditions.append(summary(conditions, ("Accepted", "ArtifactsAvailable", *never, "Routable")))
    conditions.append(model_checks.changing(served) or progressing([conditions[0], conditions[-1]]))
    return conditions
