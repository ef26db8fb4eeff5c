"""The statuses of a GpuPool and its ModelPools, from the observed state and the errors of applied objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aegaeon_operator.reconcile.cluster import model_checks
from aegaeon_operator.reconcile.cluster.conditions import Condition, message_of, no, summary, written
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.device_suspect import device_suspect
from aegaeon_operator.reconcile.cluster.facts import UNKNOWN_MODEL, ChildKey, Json, Live, Observed, Report
from aegaeon_operator.reconcile.cluster.model_states import able, model_states
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, selector
from aegaeon_operator.reconcile.cluster.overhead import memory_reserved, outside_slabs
from aegaeon_operator.reconcile.cluster.pool_checks import applied, progressing
from aegaeon_operator.reconcile.cluster.pool_state import PoolState
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
from aegaeon_operator.reconcile.cluster.status_inputs import StatusInputs
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec
from aegaeon_operator.spec.status import MOST_NAMES

Failures = Mapping[ChildKey, str]


def reports(observed: Observed, desired: Desired, failures: Failures) -> list[Report]:
    """Return the status of each existing object."""
    return Reports().of(observed, desired, failures)


@dataclass(slots=True)
class Reports:
    """The reports of one pool; a ModelPool's report is cached until one of its inputs changes."""

    _known: dict[str, tuple[StatusInputs, Report]] = field(default_factory=dict)
    _pool_state: PoolState | None = None

    def of(self, observed: Observed, desired: Desired, failures: Failures) -> list[Report]:
        """Return the status of each existing object."""
        before, self._known = self._known, {}
        pool_state = PoolState.of(observed, desired)
        if self._pool_state != pool_state:  # comparing the same object thousands of times costs nothing
            self._pool_state = pool_state
        for served in StatusInputs.each(self._pool_state, observed, desired, failures):
            known = before.get(served.pool.uid)
            same = known is not None and known[0] == served
            self._known[served.pool.uid] = known if known and same else (served, _model_pool(served, observed.now))
        reports = [report for _, report in self._known.values()]
        if observed.gpu_pool:
            states = [state for report in reports for state in report.status["models"]]
            reports.append(_gpu_pool(observed, desired, observed.gpu_pool, failures, states))
        return reports


# ---- GpuPool -------------------------------------------------------------------------------------------------------


def _gpu_pool(
    observed: Observed, desired: Desired, pool: Live[GpuPool], failures: Failures, states: list[Json]
) -> Report:
    if pool.value is None:
        return _refused(observed, pool)
    spec = pool.value.spec
    by_role = engines(observed, spec)
    conditions = _pool_conditions(observed, spec, by_role, failures)
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
            "engines": {role: str(state) for role, state in by_role.items()},
            "readyEngines": sum(state.attached for state in by_role.values()),
            "models": len(desired.attached.models),
            "names": _names(desired),
            "summary": able(states),
            "gpus": {"used": _used(spec, by_role), "dedicated": _dedicated(observed, desired, spec)},
            **({"outsideSlabs": outside} if outside else {}),
            **_last_answered(observed, pool),
        },
    )


def _refused(observed: Observed, pool: Live[GpuPool]) -> Report:
    """Return the status of an invalid spec. Its pods still serve their last configuration, so the last number of models
    stays: it protects the pool from deletion."""
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
    observed: Observed, spec: GpuPoolSpec, by_role: Mapping[str, Engines], failures: Failures
) -> list[Condition]:
    conditions = [
        applied(observed, failures),
        scheduler_ready(observed, spec),
        engines_ready(observed, spec, by_role),
        gateway_ready(observed, spec.gateway.replicas),
    ]
    picker = spec.gateway.endpoint_picker
    if picker and picker.service is None:
        conditions.append(deployment_ready(observed, "PickerReady", "picker", picker.replicas))
    parts = list(conditions)
    conditions.append(summary(conditions, tuple(condition.type for condition in conditions)))
    conditions.append(progressing(conditions, _rolling(observed)))
    conditions += [degraded(observed, parts), device_suspect(observed), memory_reserved(observed)]
    conditions += redundant(observed, spec)
    return conditions


def _last_answered(observed: Observed, pool: Live[GpuPool]) -> Json:
    """Return the time of the last token; a scheduler knows none before its start, and its clock may be ahead."""
    at = observed.scheduler.answered_at if observed.scheduler else 0
    new = _stamp(datetime.fromtimestamp(at, UTC)) if at else ""
    newest = min(max(new, pool.status.get("lastAnswered", "")), _stamp(observed.now))
    return {"lastAnswered": newest} if newest else {}


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _names(desired: Desired) -> dict[str, str]:
    """Return the owner of each served name, for the admission of other ModelPools."""
    names = sorted(desired.attached.names.items())[:MOST_NAMES]
    return {name: f"{owner.namespace}/{owner.name}" for name, owner in names}


def _used(spec: GpuPoolSpec, by_role: Mapping[str, Engines]) -> int:
    return sum(state.desired for state in by_role.values()) * spec.accelerator.count if spec.has_accelerators else 0


def _dedicated(observed: Observed, desired: Desired, spec: GpuPoolSpec) -> int:
    """Return one accelerator for each model, or more if its weights need it; their size is known per rank."""
    facts = observed.scheduler.models if observed.scheduler else {}
    count = spec.accelerator.count
    sizes = (facts.get(name, UNKNOWN_MODEL).weight_bytes * count for name in desired.attached.models)
    device = spec.memory.device_bytes
    return sum(1 if device is None else max(1, -(-size // device)) for size in sizes)


def _rolling(observed: Observed) -> str:
    """Return the names of workloads with a rollout in progress."""
    return ", ".join(sorted(key.name for key, workload in observed.workloads.items() if workload.rolling))


# ---- ModelPool -----------------------------------------------------------------------------------------------------


def _model_pool(served: StatusInputs, now: datetime) -> Report:
    pool = served.pool
    states = model_states(served)
    conditions = _model_pool_conditions(served)
    return Report(
        pool,
        {
            "observedGeneration": pool.generation,
            "conditions": written(pool, conditions, now),
            "message": message_of(conditions),
            "models": states,
            "summary": able(states),
        },
    )


def _model_pool_conditions(served: StatusInputs) -> list[Condition]:
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
