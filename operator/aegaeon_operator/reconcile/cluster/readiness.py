"""Which parts of a pool are ready: the conditions of a GpuPool about its scheduler, gateways, picker and engines.

Every message has what is there beside what is wanted; where something is missing it names a pod and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from aegaeon_operator.reconcile.cluster.conditions import SUSPECT, Condition, no, yes
from aegaeon_operator.reconcile.cluster.facts import (
    ChildKey,
    Json,
    Observed,
    SchedulerFacts,
    Subject,
    Workload,
)
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, SCHEDULERS, admin_of, child
from aegaeon_operator.reconcile.cluster.pod_state import (
    ENDING,
    RUNS,
    STARTING,
    SUSPENDED,
    Trouble,
    is_ready,
    trouble,
    unexplained,
)
from aegaeon_operator.reconcile.cluster.suspects import sentence
from aegaeon_operator.reconcile.cluster.workloads import running_schedulers
from aegaeon_operator.spec.resources import GpuPoolSpec

# Something is missing; what starts, or waits for quota, is no degradation: it is progress.
SOME = "SomeReady"
SOME_START = "SomeStarting"
SOME_HELD = "SomeSuspended"
_ON_THEIR_WAY = {STARTING: SOME_START, ENDING: SOME_START, SUSPENDED: SOME_HELD}
_NOT_ATTACHED = "EngineNotAttached"
_COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True, slots=True)
class Engines:
    """Of one role: how many the scheduler can give work to, how many there should be."""

    attached: int
    wanted: int

    def __str__(self) -> str:
        return f"{self.attached}/{self.wanted}"


def engines(observed: Observed, spec: GpuPoolSpec) -> dict[str, Engines]:
    """By role. While the scheduler does not answer, the readiness of pods counts: attached engines are ready."""
    found = {}
    for role, asked in (("unified", spec.engines), ("prefill", spec.prefill), ("decode", spec.decode)):
        if asked is None:
            continue
        if observed.scheduler:
            attached = sum(one.attached and one.role == role for one in observed.scheduler.engines)
        else:
            attached = _ready(observed, "StatefulSet", COMPONENTS[role])
        found[role] = Engines(attached, observed.replicas.get(role, asked.replicas))
    return found


def lingering_schedulers(observed: Observed) -> dict[str, str]:
    """Addresses of those that are about to end and may lead until then, by pod: their Services have them no more."""
    found = {}
    for one in (pod for name in SCHEDULERS for pod in pods_of(observed, name)):
        end, address = one["metadata"].get("deletionTimestamp"), one.get("status", {}).get("podIP")
        if end and address and observed.now <= datetime.fromisoformat(end):
            found[one["metadata"]["name"]] = admin_of(address)
    return found


def ending_engines(observed: Observed) -> list[str]:
    """Engines whose pods are deleted. One on a disconnected node does not know of it, and comes back with the node."""
    pods = (pod for name in COMPONENTS.values() for pod in pods_of(observed, name))
    return sorted(one["metadata"]["name"] for one in pods if "deletionTimestamp" in one["metadata"])


def ready_schedulers(observed: Observed, component: str) -> int:
    """Ready pods of one, as kubelets say; those of a lost node stay ready for a minute."""
    return _ready(observed, "Deployment", component)


def scheduler_ready(observed: Observed, spec: GpuPoolSpec) -> Condition:
    """A pod is ready, and one that leads has answered just now. A pool serves without its standby."""
    kind = "SchedulerReady"
    found = [deployment_ready(observed, kind, name, 1) for name in running_schedulers(observed, spec)]
    short = [one for one in found if one.status != "True"]
    if len(short) == len(found) and observed.scheduler is None:  # one that is ending may lead still
        return found[0]
    if observed.unreachable:
        text = f"{len(found) - len(short)} of {len(found)} scheduler pods are ready, but {observed.unreachable}"
        return no(kind, "SchedulerNotAnswering", text)
    if short:
        return yes(kind, _ON_THEIR_WAY.get(short[0].reason, SOME), short[0].message)
    return yes(kind, "PodsReady", "; ".join(one.message for one in found))


def deployment_ready(observed: Observed, kind: str, component: str, wanted: int) -> Condition:
    """One pod is enough to serve."""
    ready = _ready(observed, "Deployment", component)
    text = f"{ready} of {wanted} {component} pods are ready"
    if ready >= wanted:
        return yes(kind, "PodsReady", text)
    why = _trouble(observed, "Deployment", component)
    return _short(kind, f"{text}; {why.text}", why, serves=ready > 0)


def gateway_ready(observed: Observed, wanted: int) -> Condition:
    """None asked for serve no request."""
    if wanted == 0:
        return no("GatewayReady", "NoGateways", "no gateway is asked for; raise spec.gateway.replicas")
    ready = deployment_ready(observed, "GatewayReady", "gateway", wanted)
    if ready.status == "True" and observed.scheduler and observed.scheduler.gateways == frozenset():
        text = f"{ready.message}, but none is attached to the scheduler that leads: no request reaches an engine"
        return no("GatewayReady", "NoGatewayAttached", text)
    return ready


def engines_ready(observed: Observed, spec: GpuPoolSpec, found: Mapping[str, Engines]) -> Condition:
    """True when requests can be served: by engines that do both, or by one of each role."""
    kind = "EnginesReady"
    if not any(one.wanted for one in found.values()):
        return _none_wanted(spec)
    text = f"{_counted(found)} are attached"
    lacking = [role for role, one in found.items() if one.attached < one.wanted]
    serves = _serves(found) or _serves_still(observed)
    if observed.scheduler and observed.scheduler.stopped and (serves or not lacking):
        return no(kind, "NotAnswering", f"{text}, but {_idle(observed.scheduler)}")
    if not lacking:
        return yes(kind, "AllReady", text) if _serves(found) else no(kind, "NoEngines", f"{text}; {_raise(found)}")
    why = next((one for role in lacking if (one := _engine_trouble(observed, role))), None)
    why = why or _trouble(observed, "StatefulSet", COMPONENTS[lacking[0]])
    text = f"{text}; {why.text}"
    if not _serves(found) and why.reason in (STARTING, RUNS, _NOT_ATTACHED) and comes_from_zero(observed, spec):
        return yes(kind, SOME_START, f"{text}; requests wait for the first engine")
    return _short(kind, text, why, serves)


def _idle(scheduler: SchedulerFacts) -> str:
    if scheduler.stuck:
        return _stuck(scheduler)
    names = sorted(name for name, model in scheduler.models.items() if model.unanswered)
    return (
        f"nothing is computed for requests of {', '.join(names)}: see `kubectl logs` of the scheduler and the engines"
    )


def _stuck(scheduler: SchedulerFacts) -> str:
    return f"{', '.join(scheduler.stuck)} does not end a step: see `kubectl logs` of it and dmesg of its node"


def _serves_still(observed: Observed) -> bool:
    """By engines of roles that the spec has no more."""
    there = observed.scheduler.engines if observed.scheduler else ()
    return any(one.attached and one.role in observed.superseded for one in there)


def comes_from_zero(observed: Observed, spec: GpuPoolSpec) -> bool:
    """Whether its first engines started so recently that requests wait for them."""
    if not spec.hold_start_s:
        return False
    began = [one["metadata"]["creationTimestamp"] for name in COMPONENTS.values() for one in pods_of(observed, name)]
    return all((observed.now - datetime.fromisoformat(one)).total_seconds() <= spec.hold_start_s for one in began)


def degraded(observed: Observed, conditions: list[Condition]) -> Condition:
    """A pool that serves with fewer parts than it should have, none of them on its way; or without its Redis."""
    if any(one.status != "True" for one in conditions):
        return no("Degraded", "NotServing", "it does not serve at all; see Ready")
    short = [one for one in conditions if one.reason == SOME]
    if short:
        return yes("Degraded", "PartsMissing", "; ".join(one.message for one in short))
    if observed.scheduler and observed.scheduler.stuck:
        return yes("Degraded", "EngineStuck", _stuck(observed.scheduler))
    if observed.scheduler and (away := observed.scheduler.redis_away):
        who, why = min(away.items())
        text = f"{len(away)} gateways cannot use Redis, each grants its share of quotas alone; {who}: {why}"
        return yes("Degraded", "RedisAway", text)
    return no("Degraded", "NothingMissing", "everything that serves is as the spec says, or on its way")


def to_ask_about(observed: Observed) -> list[Subject]:
    """Objects whose Events alone tell what they wait for: pods, and StatefulSets that cannot make theirs."""
    found = [*unexplained(observed.pods)]
    sets = (one for key, one in observed.workloads.items() if key.kind == "StatefulSet")
    found += [one.subject for one in sets if one.pods < one.asked]
    return sorted(found)


def _none_wanted(spec: GpuPoolSpec) -> Condition:
    if spec.hold_start_s:
        return yes(
            "EnginesReady", "ScaledToZero", "no engine runs, since no request is open; the next request starts one"
        )
    asked = {"engines": spec.engines, "prefill": spec.prefill, "decode": spec.decode}
    fields = " and ".join(f"spec.{name}.replicas" for name, one in asked.items() if one)
    return no("EnginesReady", "NoEngines", f"no engine is asked for, so nothing is served; raise {fields}")


def _serves(found: Mapping[str, Engines]) -> bool:
    there = {role for role, one in found.items() if one.attached}
    return "unified" in there or {"prefill", "decode"} <= there


def _counted(found: Mapping[str, Engines]) -> str:
    names = {"unified": "engines", "prefill": "prefill engines", "decode": "decode engines"}
    return " and ".join(f"{one.attached} of {one.wanted} {names[role]}" for role, one in found.items())


def _raise(found: Mapping[str, Engines]) -> str:
    return "raise " + " and ".join(f"spec.{role}.replicas" for role, one in found.items() if not one.wanted)


def _short(kind: str, text: str, why: Trouble, serves: bool) -> Condition:
    if not serves:
        return no(kind, why.reason, text)
    return yes(kind, _ON_THEIR_WAY.get(why.reason, SOME), text)


def _trouble(observed: Observed, kind: str, component: str) -> Trouble:
    """Of the component's pods; of what should have made them where there are none to blame."""
    return trouble(pods_of(observed, component), observed.warnings) or _not_made(observed, kind, component)


def _engine_trouble(observed: Observed, role: str) -> Trouble | None:
    """Of the pods of a role, those among them that are ready and that the scheduler does not know."""
    pods = list(pods_of(observed, COMPONENTS[role]))
    problem = trouble(pods, observed.warnings)
    if observed.scheduler and (problem is None or problem.reason == RUNS):
        pod_names = {pod["metadata"]["name"] for pod in pods}
        device = next((each for each in observed.scheduler.suspects if each.engine in pod_names), None)
        problem = Trouble(SUSPECT, sentence(device)) if device else problem
    if problem or observed.scheduler is None:
        return problem
    attached = {one.name for one in observed.scheduler.engines if one.attached}
    names = sorted(one["metadata"]["name"] for one in pods if is_ready(one))
    stray = next((name for name in names if name not in attached), None)
    return Trouble(_NOT_ATTACHED, f"{stray} is ready, but not attached to the scheduler") if stray else None


def _not_made(observed: Observed, kind: str, component: str) -> Trouble:
    key = ChildKey(kind, observed.key.namespace, child(observed.key, component))
    workload = observed.workloads.get(key)
    if workload is None:
        return Trouble("PodsNotReady", f"there is no {kind} {key.name}; see Accepted")
    why = workload.refused or observed.warnings.get(key, "")
    if why:
        return Trouble("PodsNotCreated", f"{kind} {key.name} cannot make pods: {why}")
    return Trouble(STARTING, f"{kind} {key.name} has not made all pods yet")


def pods_of(observed: Observed, component: str) -> Iterator[Json]:
    """Those of a component."""
    return (one for one in observed.pods if one["metadata"].get("labels", {}).get(_COMPONENT) == component)


def workload_of(observed: Observed, kind: str, component: str) -> Workload | None:
    """The component's Deployment or StatefulSet, if it is there."""
    return observed.workloads.get(ChildKey(kind, observed.key.namespace, child(observed.key, component)))


def _ready(observed: Observed, kind: str, component: str) -> int:
    found = workload_of(observed, kind, component)
    return found.ready if found else 0
