"""Conditions of a GpuPool about its scheduler, gateways, picker and engines.

Every message has the ready and the desired number; if they differ it names a pod and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from aegaeon_operator.reconcile.cluster.conditions import SUSPECT, Condition, no, yes
from aegaeon_operator.reconcile.cluster.device_suspect import sentence
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
from aegaeon_operator.reconcile.cluster.workloads import running_schedulers
from aegaeon_operator.spec.resources import GpuPoolSpec

# Reasons of an incomplete component; a pod that starts or waits for quota is progress, not degradation.
SOME = "SomeReady"
SOME_START = "SomeStarting"
SOME_HELD = "SomeSuspended"
_ON_THEIR_WAY = {STARTING: SOME_START, ENDING: SOME_START, SUSPENDED: SOME_HELD}
_NOT_ATTACHED = "EngineNotAttached"
_COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines of a role: attached to the scheduler, and desired."""

    attached: int
    desired: int

    def __str__(self) -> str:
        return f"{self.attached}/{self.desired}"


def engines(observed: Observed, spec: GpuPoolSpec) -> dict[str, Engines]:
    """Return the engines by role; while the scheduler does not answer, ready pods count as attached."""
    by_role = {}
    for role, replicas in spec.roles.items():
        if observed.scheduler:
            attached = sum(engine.attached and engine.role == role for engine in observed.scheduler.engines)
        else:
            attached = _ready(observed, "StatefulSet", COMPONENTS[role])
        by_role[role] = Engines(attached, observed.replicas.get(role, replicas.replicas))
    return by_role


def lingering_schedulers(observed: Observed) -> dict[str, str]:
    """Return addresses of terminating schedulers by pod: they may still lead, and are no longer in their Services."""
    addresses = {}
    for pod in (pod for name in SCHEDULERS for pod in pods_of(observed, name)):
        end, address = pod["metadata"].get("deletionTimestamp"), pod.get("status", {}).get("podIP")
        if end and address and observed.now <= datetime.fromisoformat(end):
            addresses[pod["metadata"]["name"]] = admin_of(address)
    return addresses


def ending_engines(observed: Observed) -> list[str]:
    """Return engines with deleted pods; on a disconnected node such an engine runs on and returns with the node."""
    pods = (pod for name in COMPONENTS.values() for pod in pods_of(observed, name))
    return sorted(pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"])


def ready_schedulers(observed: Observed, component: str) -> int:
    """Return the number of ready pods of a scheduler component; pods of a lost node stay ready for a minute."""
    return _ready(observed, "Deployment", component)


def scheduler_ready(observed: Observed, spec: GpuPoolSpec) -> Condition:
    """Return SchedulerReady: a pod is ready and the leader answers; the standby is not required."""
    kind = "SchedulerReady"
    ready = [deployment_ready(observed, kind, name, 1) for name in running_schedulers(observed, spec)]
    short = [condition for condition in ready if condition.status != "True"]
    if len(short) == len(ready) and observed.scheduler is None:  # a terminating scheduler may still lead
        return ready[0]
    if observed.unreachable:
        text = f"{len(ready) - len(short)} of {len(ready)} scheduler pods are ready, but {observed.unreachable}"
        return no(kind, "SchedulerNotAnswering", text)
    if short:
        return yes(kind, _ON_THEIR_WAY.get(short[0].reason, SOME), short[0].message)
    return yes(kind, "PodsReady", "; ".join(condition.message for condition in ready))


def deployment_ready(observed: Observed, kind: str, component: str, desired: int) -> Condition:
    """Return the condition of a Deployment, which can serve with a single pod."""
    ready = _ready(observed, "Deployment", component)
    text = f"{ready} of {desired} {component} pods are ready"
    if ready >= desired:
        return yes(kind, "PodsReady", text)
    why = _trouble(observed, "Deployment", component)
    return _short(kind, f"{text}; {why.text}", why, serves=ready > 0)


def gateway_ready(observed: Observed, desired: int) -> Condition:
    """Return GatewayReady."""
    if desired == 0:
        return no("GatewayReady", "NoGateways", "spec.gateway.replicas is 0; raise it")
    ready = deployment_ready(observed, "GatewayReady", "gateway", desired)
    if ready.status == "True" and observed.scheduler and observed.scheduler.gateways == frozenset():
        text = f"{ready.message}, but none is attached to the leading scheduler, so no request reaches an engine"
        return no("GatewayReady", "NoGatewayAttached", text)
    return ready


def engines_ready(observed: Observed, spec: GpuPoolSpec, by_role: Mapping[str, Engines]) -> Condition:
    """Return EnginesReady: a unified engine, or a prefill and a decode engine, can serve requests."""
    kind = "EnginesReady"
    if not any(state.desired for state in by_role.values()):
        return _no_engines(spec)
    text = f"{_counted(by_role)} are attached"
    lacking = [role for role, state in by_role.items() if state.attached < state.desired]
    serves = _serves(by_role) or _superseded_serve(observed)
    if observed.scheduler and observed.scheduler.stopped and (serves or not lacking):
        return no(kind, "NotAnswering", f"{text}, but {_idle(observed.scheduler)}")
    if not lacking:
        if _serves(by_role):
            return yes(kind, "AllReady", text)
        return no(kind, "NoEngines", f"{text}; {_raise(by_role)}")
    why = next((trouble for role in lacking if (trouble := _engine_trouble(observed, role))), None)
    why = why or _trouble(observed, "StatefulSet", COMPONENTS[lacking[0]])
    text = f"{text}; {why.text}"
    if not _serves(by_role) and why.reason in (STARTING, RUNS, _NOT_ATTACHED) and comes_from_zero(observed, spec):
        return yes(kind, SOME_START, f"{text}; requests wait for the first engine")
    return _short(kind, text, why, serves)


def _idle(scheduler: SchedulerFacts) -> str:
    if scheduler.stuck:
        return _stuck(scheduler)
    names = sorted(name for name, model in scheduler.models.items() if model.unanswered)
    return f"requests for {', '.join(names)} make no progress: see `kubectl logs` of the scheduler and the engines"


def _stuck(scheduler: SchedulerFacts) -> str:
    names = ", ".join(scheduler.stuck)
    return f"stuck in a step: {names}; see `kubectl logs` of each and dmesg of its node"


def _superseded_serve(observed: Observed) -> bool:
    """Return whether engines of roles that were removed from the spec still serve."""
    engines = observed.scheduler.engines if observed.scheduler else ()
    return any(engine.attached and engine.role in observed.superseded for engine in engines)


def comes_from_zero(observed: Observed, spec: GpuPoolSpec) -> bool:
    """Return whether the first engines of a pool have just started, so that requests wait for them."""
    if not spec.hold_start_s:
        return False
    pods = [pod for name in COMPONENTS.values() for pod in pods_of(observed, name)]
    began = [datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in pods]
    return all((observed.now - at).total_seconds() <= spec.hold_start_s for at in began)


def degraded(observed: Observed, conditions: list[Condition]) -> Condition:
    """Return Degraded: pods are missing and not starting, an engine is stuck, or Redis is unavailable."""
    if any(condition.status != "True" for condition in conditions):
        return no("Degraded", "NotServing", "the pool does not serve; see condition Ready")
    short = [condition for condition in conditions if condition.reason == SOME]
    if short:
        return yes("Degraded", "PartsMissing", "; ".join(condition.message for condition in short))
    if observed.scheduler and observed.scheduler.stuck:
        return yes("Degraded", "EngineStuck", _stuck(observed.scheduler))
    if observed.scheduler and (away := observed.scheduler.redis_away):
        who, why = min(away.items())
        text = f"{len(away)} gateways cannot use Redis and enforce a share of the quotas each; {who}: {why}"
        return yes("Degraded", "RedisAway", text)
    return no("Degraded", "NothingMissing", "all components match the spec or are progressing")


def need_events(observed: Observed) -> list[Subject]:
    """Return objects whose problem only Events report: waiting pods, and StatefulSets that cannot create pods."""
    workloads = (workload for key, workload in observed.workloads.items() if key.kind == "StatefulSet")
    lacking = [workload.subject for workload in workloads if workload.pods < workload.desired]
    return sorted([*unexplained(observed.pods), *lacking])


def _no_engines(spec: GpuPoolSpec) -> Condition:
    if spec.hold_start_s:
        return yes(
            "EnginesReady", "ScaledToZero", "scaled to zero while no request is open; the next request starts an engine"
        )
    replicas = {"engines": spec.engines, "prefill": spec.prefill, "decode": spec.decode}
    fields = " and ".join(f"spec.{name}.replicas" for name, value in replicas.items() if value)
    return no("EnginesReady", "NoEngines", f"the pool has no engines, so no request is served; raise {fields}")


def _serves(by_role: Mapping[str, Engines]) -> bool:
    attached = {role for role, state in by_role.items() if state.attached}
    return "unified" in attached or {"prefill", "decode"} <= attached


def _counted(by_role: Mapping[str, Engines]) -> str:
    names = {"unified": "engines", "prefill": "prefill engines", "decode": "decode engines"}
    return " and ".join(f"{state.attached} of {state.desired} {names[role]}" for role, state in by_role.items())


def _raise(by_role: Mapping[str, Engines]) -> str:
    return "raise " + " and ".join(f"spec.{role}.replicas" for role, state in by_role.items() if not state.desired)


def _short(kind: str, text: str, why: Trouble, serves: bool) -> Condition:
    if not serves:
        return no(kind, why.reason, text)
    return yes(kind, _ON_THEIR_WAY.get(why.reason, SOME), text)


def _trouble(observed: Observed, kind: str, component: str) -> Trouble:
    """Return the problem of a component's pods, or of the workload that should have created them."""
    return trouble(pods_of(observed, component), observed.warnings) or _not_made(observed, kind, component)


def _engine_trouble(observed: Observed, role: str) -> Trouble | None:
    """Return the problem of a role's pods, including ready pods that are not attached to the scheduler."""
    pods = list(pods_of(observed, COMPONENTS[role]))
    problem = trouble(pods, observed.warnings)
    if observed.scheduler and (problem is None or problem.reason == RUNS):
        pod_names = {pod["metadata"]["name"] for pod in pods}
        device = next((suspect for suspect in observed.scheduler.suspects if suspect.engine in pod_names), None)
        problem = Trouble(SUSPECT, sentence(device)) if device else problem
    if problem or observed.scheduler is None:
        return problem
    attached = {engine.name for engine in observed.scheduler.engines if engine.attached}
    names = sorted(pod["metadata"]["name"] for pod in pods if is_ready(pod))
    stray = next((name for name in names if name not in attached), None)
    return Trouble(_NOT_ATTACHED, f"{stray} is ready, but not attached to the scheduler") if stray else None


def _not_made(observed: Observed, kind: str, component: str) -> Trouble:
    key = ChildKey(kind, observed.key.namespace, child(observed.key, component))
    workload = observed.workloads.get(key)
    if workload is None:
        return Trouble("PodsNotReady", f"{kind} {key.name} does not exist; see condition Accepted")
    why = workload.refused or observed.warnings.get(key, "")
    if why:
        return Trouble("PodsNotCreated", f"{kind} {key.name} cannot create pods: {why}")
    return Trouble(STARTING, f"{kind} {key.name} has not created all pods yet")


def pods_of(observed: Observed, component: str) -> Iterator[Json]:
    """Yield the pods of a component."""
    return (pod for pod in observed.pods if pod["metadata"].get("labels", {}).get(_COMPONENT) == component)


def workload_of(observed: Observed, kind: str, component: str) -> Workload | None:
    """Return the component's Deployment or StatefulSet; None: it does not exist."""
    return observed.workloads.get(ChildKey(kind, observed.key.namespace, child(observed.key, component)))


def _ready(observed: Observed, kind: str, component: str) -> int:
    workload = workload_of(observed, kind, component)
    return workload.ready if workload else 0
