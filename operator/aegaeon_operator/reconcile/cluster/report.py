"""The statuses of a GpuPool and its ModelPools, from what was observed and what could not be applied."""

from __future__ import annotations

from collections.abc import Mapping

from aegaeon_operator.reconcile.cluster.admission import admitted
from aegaeon_operator.reconcile.cluster.conditions import FETCHING, Condition, no, summary, unknown, written, yes
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Live, ModelFacts, Observed, Report
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, child, schedulers, selector
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ModelPool, ServedModel

Failures = Mapping[ChildKey, str]


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
        return Report(pool, {**status, "conditions": written(pool, conditions, observed.now)})
    spec = pool.value.spec
    engines = _engines(observed, spec)
    ready = sum(ready for ready, _ in engines.values())
    total = sum(count for _, count in engines.values())
    conditions = [
        _applied(observed, failures),
        _scheduler_ready(observed, spec),
        _engines_ready(ready, total),
        _deployment(observed, "GatewayReady", "gateway", spec.gateway.replicas),
    ]
    picker = spec.gateway.endpoint_picker
    if picker and picker.service is None:
        conditions.append(_deployment(observed, "PickerReady", "picker", picker.replicas))
    conditions.append(summary(conditions, tuple(one.type for one in conditions)))
    conditions.append(_progressing(conditions, _rolling(observed)))
    used = total * spec.accelerator.count if spec.accelerator.resource_name else 0
    component = COMPONENTS["unified"] if spec.engines else COMPONENTS["decode"]
    return Report(
        pool,
        {
            **status,
            "conditions": written(pool, conditions, observed.now),
            "replicas": _live(observed, "StatefulSet", COMPONENTS["unified"]).get("status", {}).get("replicas", 0),
            "selector": ",".join(f"{name}={value}" for name, value in selector(observed.key, component).items()),
            "readyEngines": ready,
            "models": len(wanted.attached.models),
            "gpus": {"used": used, "dedicated": _dedicated(observed, wanted, spec)},
        },
    )


def _engines(observed: Observed, spec: GpuPoolSpec) -> dict[str, tuple[int, int]]:
    """(ready, asked for) by role, as the StatefulSets are."""
    found = {}
    for role, asked in (("unified", spec.engines), ("prefill", spec.prefill), ("decode", spec.decode)):
        if asked:
            live = _live(observed, "StatefulSet", COMPONENTS[role])
            wanted = observed.replicas.get(role, asked.replicas)
            found[role] = (live.get("status", {}).get("readyReplicas", 0), wanted)
    return found


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
    refused = observed.scheduler.refused if observed.scheduler else ""
    if refused:
        return no("Accepted", "CatalogRefused", refused)
    return yes("Accepted", "Applied", "everything that the pool needs is in the cluster")


def _deployment(observed: Observed, kind: str, component: str, wanted: int) -> Condition:
    live = _live(observed, "Deployment", component)
    ready = live.get("status", {}).get("readyReplicas", 0)
    text = f"{ready} of {wanted} pods are ready"
    return yes(kind, "PodsReady", text) if ready >= min(wanted, 1) else no(kind, "PodsNotReady", text)


def ready_schedulers(observed: Observed, component: str) -> int:
    """Ready pods of one, as kubelets say; those of a lost node stay ready for a minute."""
    return int(_live(observed, "Deployment", component).get("status", {}).get("readyReplicas", 0))


def _scheduler_ready(observed: Observed, spec: GpuPoolSpec) -> Condition:
    """What counts is that one which leads has answered just now."""
    asked = schedulers(spec)
    ready = sum(min(ready_schedulers(observed, name), 1) for name in asked)
    text = f"{ready} of {len(asked)} pods are ready"
    if ready and observed.scheduler is None:
        return no("SchedulerReady", "NoAnswer", f"{text}, but none that leads answers; see their logs")
    if not ready:
        return no("SchedulerReady", "PodsNotReady", text)
    return yes("SchedulerReady", "PodsReady" if ready == len(asked) else "SomeReady", text)


def _engines_ready(ready: int, total: int) -> Condition:
    text = f"{ready} of {total} engines are attached and ready"
    if total == 0:
        return yes("EnginesReady", "NoneAskedFor", text)
    if ready == 0:
        return no("EnginesReady", "EnginesNotReady", text)
    return yes("EnginesReady", "AllReady" if ready >= total else "SomeReady", text)


def _progressing(conditions: list[Condition], rolling: str = "") -> Condition:
    """What is refused waits for a person: nothing is on its way."""
    refused = next((one for one in conditions if one.type == "Accepted" and one.status == "False"), None)
    if refused:
        return no("Progressing", refused.reason, refused.message)
    waits = next((one for one in conditions if one.status != "True" or one.reason == "SomeReady"), None)
    if waits:
        return yes("Progressing", waits.reason, waits.message)
    if rolling:
        return yes("Progressing", "RollingOut", f"not all pods are as the spec says yet: {rolling}")
    return no("Progressing", "Stable", "nothing is changing")


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
        _accepted(wanted, pool),
        _artifacts(observed, mine),
        _admitted(observed, wanted, mine),
        _routable(observed, pool, mine, failures),
        _degraded(observed, mine),
    ]
    conditions.append(summary(conditions, ("Accepted", "ArtifactsAvailable", "Routable")))
    conditions.append(_progressing([conditions[0], conditions[-1]]))
    able = sum(one["state"] in ("Cached", "Resident") for one in states)
    return Report(
        pool,
        {
            "observedGeneration": pool.generation,
            "conditions": written(pool, conditions, observed.now),
            "models": states,
            "summary": f"{able}/{len(states)}",
        },
    )


def _accepted(wanted: Desired, pool: Live[ModelPool]) -> Condition:
    refusal = wanted.attached.refused.get(pool.uid)
    if refusal:
        return no("Accepted", refusal.reason, refusal.message)
    return yes("Accepted", "Accepted", "the GpuPool serves its models")


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
        return no(kind, "NothingServed", "none of its models is served; see Accepted")
    if observed.scheduler is None:
        return unknown(kind, "SchedulerUnknown", "the pool's scheduler does not answer yet")
    facts = {model.name: observed.scheduler.models.get(model.name, ModelFacts()) for model in mine}
    broken = [f"{name}: {one.reason}" for name, one in facts.items() if one.phase == "failed"]
    if broken:
        return no(kind, "ModelFailed", "; ".join(sorted(broken)))
    cold = sorted(name + _progress(one) for name, one in facts.items() if one.phase != "cached")
    if cold:
        return no(kind, FETCHING, f"not in a host cache yet: {', '.join(cold)}")
    return yes(kind, "Cached", "all models are in a host cache")


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
    decoding = sum(count for role, (_, count) in _engines(observed, spec).items() if role != "prefill")
    return admitted(mine, wanted.attached.served, observed.scheduler.models, decoding, spec.memory.device_bytes)


def _routable(observed: Observed, pool: Live[ModelPool], mine: list[ServedModel], failures: Failures) -> Condition:
    if not mine or pool.value is None:
        return no("Routable", "NothingServed", "none of its models is served; see Accepted")
    key = ChildKey("HTTPRoute", pool.namespace, pool.name)
    if key in failures:
        return no("Routable", "RouteFailed", failures[key])
    gateway = _deployment(observed, "Routable", "gateway", 1)
    if gateway.status != "True":
        return no("Routable", "GatewayNotReady", "no gateway pod of the GpuPool is ready")
    if not pool.value.spec.gateway.parent_refs:
        where = f"{child(observed.key, 'gateway')}.{observed.key.namespace}.svc"
        return yes("Routable", "ServiceReady", f"reached at http://{where}:8000/v1")
    return _route(observed.children.get(key, {}))


def _route(live: Mapping[str, Json]) -> Condition:
    """As the Gateways say, which is read and never written."""
    parents = live.get("status", {}).get("parents", [])
    for parent in parents:
        said = {one["type"]: one for one in parent.get("conditions", ())}
        if all(said.get(kind, {}).get("status") == "True" for kind in ("Accepted", "ResolvedRefs")):
            return yes("Routable", "RouteAccepted", "a Gateway has accepted the route")
    refused = [
        f"{one['reason']}: {one['message']}"
        for parent in parents
        for one in parent.get("conditions", ())
        if one["type"] in ("Accepted", "ResolvedRefs") and one["status"] != "True"
    ]
    return no("Routable", "RouteNotAccepted", "; ".join(refused) or "no Gateway has spoken of the route yet")


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
