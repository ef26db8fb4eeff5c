"""The statuses of a GpuPool and its ModelPools, from what was observed and what could not be applied."""

from __future__ import annotations

from collections.abc import Mapping

from aegaeon_operator.reconcile.cluster.access import routable, without_engines, without_scheduler
from aegaeon_operator.reconcile.cluster.admission import admitted
from aegaeon_operator.reconcile.cluster.conditions import (
    FETCHING,
    Condition,
    no,
    summary,
    told,
    unknown,
    written,
    yes,
)
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Live, ModelFacts, Observed, Report
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, child, selector
from aegaeon_operator.reconcile.cluster.readiness import (
    SOME,
    SOME_START,
    Engines,
    degraded,
    deployment_ready,
    engines,
    engines_ready,
    gateway_ready,
    scheduler_ready,
)
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ModelPool, ServedModel

Failures = Mapping[ChildKey, str]
_NOTHING = "none of its models is served; see Accepted"


def reports(observed: Observed, wanted: Desired, failures: Failures) -> list[Report]:
    """One for each object that is there."""
    found = [_model_pool(observed, wanted, one, failures) for one in observed.model_pools]
    if observed.gpu_pool:
        found.append(_gpu_pool(observed, wanted, observed.gpu_pool, failures))
    return found


# ---- GpuPool -------------------------------------------------------------------------------------------------------


def _gpu_pool(observed: Observed, wanted: Desired, pool: Live[GpuPool], failures: Failures) -> Report:
    status: Json = {"observedGeneration": pool.generation}
    if pool.value is None:
        conditions = [no("Accepted", "Invalid", "; ".join(pool.problems))]
        conditions.append(summary(conditions, ("Accepted",)))
        said = {"conditions": written(pool, conditions, observed.now), "message": told(conditions)}
        # Its pods go on serving their last configuration: the last count protects it from deletion.
        models = pool.status.get("models", 0) if observed.model_pools else 0
        return Report(pool, {**status, **said, "models": models})
    spec = pool.value.spec
    found = engines(observed, spec)
    conditions = [
        _applied(observed, failures),
        scheduler_ready(observed, spec),
        engines_ready(observed, spec, found),
        gateway_ready(observed, spec.gateway.replicas),
    ]
    picker = spec.gateway.endpoint_picker
    if picker and picker.service is None:
        conditions.append(deployment_ready(observed, "PickerReady", "picker", picker.replicas))
    parts = list(conditions)
    conditions.append(summary(conditions, tuple(one.type for one in conditions)))
    conditions.append(_progressing(conditions, _rolling(observed)))
    conditions.append(degraded(parts))
    component = COMPONENTS["unified"] if spec.engines else COMPONENTS["decode"]
    states = [one for model_pool in observed.model_pools for one in _states(observed, wanted, model_pool)]
    return Report(
        pool,
        {
            **status,
            "conditions": written(pool, conditions, observed.now),
            "message": told(conditions),
            "replicas": _live(observed, "StatefulSet", COMPONENTS["unified"]).get("status", {}).get("replicas", 0),
            "selector": ",".join(f"{name}={value}" for name, value in selector(observed.key, component).items()),
            "engines": {role: str(one) for role, one in found.items()},
            "readyEngines": sum(one.attached for one in found.values()),
            "models": len(wanted.attached.models),
            "summary": _able(states),
            "gpus": {"used": _used(spec, found), "dedicated": _dedicated(observed, wanted, spec)},
        },
    )


def _used(spec: GpuPoolSpec, found: Mapping[str, Engines]) -> int:
    return sum(one.wanted for one in found.values()) * spec.accelerator.count if spec.accelerator.resource_name else 0


def _dedicated(observed: Observed, wanted: Desired, spec: GpuPoolSpec) -> int:
    """One accelerator for each model, more for one that does not fit. Its weights are known as each rank has them."""
    facts = observed.scheduler.models if observed.scheduler else {}
    count = spec.accelerator.count
    sizes = (facts.get(name, ModelFacts()).weight_bytes * count for name in wanted.attached.models)
    return sum(max(1, -(-size // spec.memory.device_bytes)) for size in sizes)


def _applied(observed: Observed, failures: Failures) -> Condition:
    """Routes are ModelPools' own: what is wrong with one stands there."""
    of_pool = {key: why for key, why in failures.items() if key.kind != "HTTPRoute"}
    if of_pool:
        text = "; ".join(f"{key.kind} {key.name}: {why}" for key, why in sorted(of_pool.items()))
        return no("Accepted", "ApplyFailed", text)
    refused = len(observed.scheduler.refused) if observed.scheduler else 0
    counted = f"; models refused, see their ModelPools: {refused}" if refused else ""
    return yes("Accepted", "Applied", f"everything that the pool needs is in the cluster{counted}")


def _progressing(conditions: list[Condition], rolling: str = "") -> Condition:
    """What is refused waits for a person: nothing is on its way."""
    refused = next((one for one in conditions if one.status == "False" and _waits_for_a_person(one)), None)
    if refused:
        return no("Progressing", refused.reason, refused.message)
    waits = next((one for one in conditions if one.status != "True" or one.reason in (SOME, SOME_START)), None)
    if waits:
        return yes("Progressing", waits.reason, waits.message)
    if rolling:
        return yes("Progressing", "RollingOut", f"not all pods are as the spec says yet: {rolling}")
    return no("Progressing", "Stable", "nothing is changing")


def _waits_for_a_person(condition: Condition) -> bool:
    return condition.type == "Accepted" or condition.reason in ("NoEngines", "NoGateways")


def _live(observed: Observed, kind: str, component: str) -> Json:
    key = observed.key
    return dict(observed.children.get(ChildKey(kind, key.namespace, child(key, component)), {}))


def _rolling(observed: Observed) -> str:
    """Workloads that are being replaced, by name."""
    return ", ".join(sorted(key.name for key, live in observed.children.items() if _is_rolling(live)))


def _is_rolling(live: Json) -> bool:
    """As `kubectl rollout status` tells."""
    status: Json = live.get("status") or {}
    if live["kind"] not in ("Deployment", "StatefulSet"):
        return False
    if status.get("observedGeneration", 0) < live["metadata"].get("generation", 1):
        return True
    if live["kind"] == "StatefulSet":
        return bool(status.get("updateRevision") != status.get("currentRevision"))
    updated = status.get("updatedReplicas", 0)
    return bool(updated < live["spec"]["replicas"] or status.get("replicas", 0) > updated)


# ---- ModelPool -----------------------------------------------------------------------------------------------------


def _model_pool(observed: Observed, wanted: Desired, pool: Live[ModelPool], failures: Failures) -> Report:
    mine = [model for owner, model in wanted.attached.models.values() if owner.uid == pool.uid]
    states = _states(observed, wanted, pool)
    conditions = [
        _accepted(observed, wanted, pool, mine),
        _artifacts(observed, mine),
        _admitted(observed, wanted, mine),
        routable(observed, pool, failures) if mine else no("Routable", "NothingServed", _NOTHING),
        _degraded(observed, mine),
    ]
    never = ("Admitted",) if conditions[2].reason == "ModelTooLarge" else ()
    conditions.append(summary(conditions, ("Accepted", "ArtifactsAvailable", *never, "Routable")))
    conditions.append(_changing(observed, mine) or _progressing([conditions[0], conditions[-1]]))
    return Report(
        pool,
        {
            "observedGeneration": pool.generation,
            "conditions": written(pool, conditions, observed.now),
            "message": told(conditions),
            "models": states,
            "summary": _able(states),
        },
    )


def _able(states: list[Json]) -> str:
    """How many models can be served at once, of how many."""
    return f"{sum(one['state'] in ('Cached', 'Resident') for one in states)}/{len(states)}"


def _accepted(observed: Observed, wanted: Desired, pool: Live[ModelPool], mine: list[ServedModel]) -> Condition:
    refusal = wanted.attached.refused.get(pool.uid)
    if refusal:
        return no("Accepted", refusal.reason, refusal.message)
    refused = _said_of(mine, observed.scheduler.refused if observed.scheduler else {})
    if refused:
        return no("Accepted", "ModelRefused", refused)
    return yes("Accepted", "Accepted", "the GpuPool serves its models")


def _changing(observed: Observed, mine: list[ServedModel]) -> Condition | None:
    """A model that is to be another one, if any is on its way."""
    text = _said_of(mine, observed.scheduler.changing if observed.scheduler else {})
    return yes("Progressing", "ModelChanging", text) if text else None


def _said_of(mine: list[ServedModel], said: Mapping[str, str]) -> str:
    """What the scheduler says of these models and of no others."""
    return "; ".join(f"{model.name}: {said[model.name]}" for model in mine if model.name in said)


def _states(observed: Observed, wanted: Desired, pool: Live[ModelPool]) -> list[Json]:
    facts = observed.scheduler.models if observed.scheduler else {}
    found: list[Json] = []
    for model in pool.value.spec.models if pool.value else ():
        why = wanted.attached.failed.get((pool.uid, model.name), "")
        if why or pool.uid != _owner(wanted, model.name):
            refusal = wanted.attached.refused.get(pool.uid)
            reason = why or (refusal.message if refusal else "")
            found.append({"name": model.name, "state": "Failed", "reason": reason[:1024], "queued": 0, "running": 0})
        else:
            found.append(_state(model, facts.get(model.name, ModelFacts())))
    return sorted(found, key=lambda one: str(one["name"]))


def _owner(wanted: Desired, model: str) -> str:
    owner = wanted.attached.models.get(model)
    return owner[0].uid if owner else ""


def _state(model: ServedModel, facts: ModelFacts) -> Json:
    state = "Failed" if facts.phase == "failed" else "Cached" if facts.phase == "cached" else "Cold"
    found: Json = {
        "name": model.name,
        "state": "Resident" if facts.resident else state,
        "reason": facts.reason[:1024],
        "queued": facts.queued,
        "running": facts.running,
    }
    if facts.output_tokens:
        found["attainment"] = min(100 * facts.tokens_on_time // facts.output_tokens, 100)
    return found


def _artifacts(observed: Observed, mine: list[ServedModel]) -> Condition:
    kind = "ArtifactsAvailable"
    if not mine:
        return no(kind, "NothingServed", _NOTHING)
    if observed.scheduler is None:
        return unknown(kind, "SchedulerUnknown", without_scheduler(observed))
    facts = {model.name: observed.scheduler.models.get(model.name, ModelFacts()) for model in mine}
    broken = [_named(name, one.reason) for name, one in facts.items() if one.phase == "failed"]
    if broken:
        return no(kind, "ModelFailed", "; ".join(sorted(broken)))
    cold = sorted(name + _progress(one) for name, one in facts.items() if one.phase != "cached")
    if cold and not any(one.attached for one in observed.scheduler.engines):  # who would fetch them
        nothing = yes(kind, "ScaledToZero", "files are fetched when the next request starts an engine")
        return without_engines(observed, kind) or nothing
    if cold:
        return no(kind, FETCHING, f"not in a host cache yet: {', '.join(cold)}")
    return yes(kind, "Cached", "all models are in a host cache")


def _named(model: str, reason: str) -> str:
    """Engines begin their reasons with the model's name."""
    return reason if reason.startswith(f"{model}: ") else f"{model}: {reason}"


def _progress(facts: ModelFacts) -> str:
    """How far a fetch is, as far as it is known."""
    if not facts.bytes_total:
        return ""
    done, total = facts.bytes_done / 1e9, facts.bytes_total / 1e9
    pace = f" at {facts.bytes_per_s / 1e6:.3g} MB/s, {facts.remaining_s:.0f} s left" if facts.bytes_per_s else ""
    return f" ({done:.3g} of {total:.3g} GB{pace})"


def _admitted(observed: Observed, wanted: Desired, mine: list[ServedModel]) -> Condition:
    if not mine or observed.scheduler is None or not observed.gpu_pool or not observed.gpu_pool.value:
        return unknown("Admitted", "NotMeasured", "there is nothing to estimate from")
    spec = observed.gpu_pool.value.spec
    found = {role: one.wanted for role, one in engines(observed, spec).items() if role != "prefill"}
    decoding = sum(found.values()) or sum(spec.roles[role].max or 0 for role in found)  # as there may be, when needed
    return admitted(mine, wanted.attached.served, observed.scheduler.models, decoding, spec.memory.device_bytes)


def _degraded(observed: Observed, mine: list[ServedModel]) -> Condition:
    facts = observed.scheduler.models if observed.scheduler else {}
    late = []
    for model in mine:
        one = facts.get(model.name, ModelFacts())
        if one.output_tokens and one.tokens_on_time < _GOOD * one.output_tokens:
            late.append(f"{model.name} {one.tokens_on_time / one.output_tokens:.0%}")
    if late:
        return yes("Degraded", "ObjectiveMissed", f"tokens on time: {', '.join(late)}; wanted: {_GOOD:.0%}")
    if not any(facts[model.name].output_tokens for model in mine if model.name in facts):
        return no("Degraded", "NoTraffic", "no token was asked for yet")
    return no("Degraded", "ObjectiveMet", "tokens are on time")


_GOOD = 0.9
