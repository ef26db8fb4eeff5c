"""Deployments, StatefulSets, their Services and PodDisruptionBudgets."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key, Live, Observed
from aegaeon_operator.reconcile.cluster.names import (
    COMPONENTS,
    ENGINE_METRICS,
    GATEWAY_PORT,
    KUEUE_LABELS,
    SCHEDULER_ADMIN,
    SCHEDULER_METRICS,
    SCHEDULER_PORT,
    SCHEDULERS,
    child,
    manifest,
    selector,
)
from aegaeon_operator.reconcile.cluster.pods import engine_pod, gateway_pod, scheduler_pod
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec

_RBAC = "rbac.authorization.k8s.io"


def workloads(observed: Observed, pool: Live[GpuPool], spec: GpuPoolSpec, configs: dict[str, Json]) -> Iterator[Json]:
    """Yield all workloads of a pool. `configs`: configuration of the pods by component."""
    key, platform = observed.key, observed.platform
    yield from account(key, pool, "scheduler", platform.scheduler_role)
    for name in SCHEDULERS:
        replicas = int(name in running_schedulers(observed, spec))
        yield deployment(key, pool, name, replicas, scheduler_pod(key, name, spec, platform, configs[name]))
        yield service(key, pool, name, grpc=SCHEDULER_PORT, admin=SCHEDULER_ADMIN, metrics=SCHEDULER_METRICS)
    gateway = gateway_pod(key, spec, platform, configs["gateway"])
    yield deployment(key, pool, "gateway", spec.gateway.replicas, gateway)
    yield service(key, pool, "gateway", http=GATEWAY_PORT)
    yield budget(key, pool, "gateway")
    for role, replicas in roles(observed, spec).items():
        component = COMPONENTS[role]
        engines = engine_pod(key, role, spec, platform, configs[component])
        yield _queued(pool, _stateful_set(key, pool, component, replicas, engines))
        yield service(key, pool, component, headless=True, metrics=ENGINE_METRICS)
        yield budget(key, pool, component)


def running_schedulers(observed: Observed, spec: GpuPoolSpec) -> tuple[str, ...]:
    """Return the components with a pod: the second if the spec enables it, or while the first does not answer."""
    return SCHEDULERS if spec.scheduling.standby or observed.failover else SCHEDULERS[:1]


def roles(observed: Observed, spec: GpuPoolSpec) -> dict[str, int]:
    """Return the number of engines by role, from the autoscaler or the spec."""
    return {role: observed.replicas.get(role, replicas.replicas) for role, replicas in spec.roles.items()}


def engine_names(observed: Observed, spec: GpuPoolSpec) -> tuple[str, ...]:
    """Return the pod names of all engines, including those of removed roles that still serve."""
    counts = {child(observed.key, COMPONENTS[role]): count for role, count in roles(observed, spec).items()}
    for name in (child(observed.key, COMPONENTS[role]) for role in observed.superseded):
        staying = observed.workloads.get(ChildKey("StatefulSet", observed.key.namespace, name))
        counts[name] = staying.desired if staying else 0
    return tuple(f"{stateful_set}-{number}" for stateful_set, count in counts.items() for number in range(count))


def service(key: Key, pool: Live[GpuPool], component: str, headless: bool = False, **ports: int) -> Json:
    """Return the Service of a component. A headless Service gives its pods DNS names, ready or not."""
    body = manifest("v1", "Service", key.namespace, child(key, component), key, pool, component)
    body["spec"] = {
        "selector": selector(key, component),
        "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports.items()],
    }
    if headless:
        body["spec"] |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return body


def deployment(key: Key, pool: Live[GpuPool], component: str, replicas: int, template: Json) -> Json:
    """Return a Deployment with rolling updates, except for a scheduler, of which only one runs."""
    body = manifest("apps/v1", "Deployment", key.namespace, child(key, component), key, pool, component)
    body["spec"] = {
        "replicas": replicas,
        "selector": {"matchLabels": selector(key, component)},
        "template": template,
        # A terminating scheduler holds its Lease until it exits, so a new one beside it could only wait.
        "strategy": {"type": "Recreate"}
        if component in SCHEDULERS
        else {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "revisionHistoryLimit": 2,
    }
    return body


def _stateful_set(key: Key, pool: Live[GpuPool], component: str, replicas: int, template: Json) -> Json:
    """Return a StatefulSet: engines start in parallel and are replaced one by one, the next when the last is ready."""
    body = manifest("apps/v1", "StatefulSet", key.namespace, child(key, component), key, pool, component)
    body["spec"] = {
        "replicas": replicas,
        "serviceName": child(key, component),
        "selector": {"matchLabels": selector(key, component)},
        "template": template,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 2,
    }
    return body


def _queued(pool: Live[GpuPool], stateful_set: Json) -> Json:
    """Add Kueue's labels to the pods, so that Kueue queues each pod by itself.

    With labels on the StatefulSet, Kueue would admit it as a unit and refuse changes of replicas and template.
    """
    own = pool.value.metadata.labels if pool.value else {}
    template = stateful_set["spec"]["template"]["metadata"]
    template["labels"] = {**{name: own[name] for name in KUEUE_LABELS if name in own}, **template["labels"]}
    return stateful_set


def account(key: Key, pool: Live[GpuPool], component: str, role: str) -> Iterator[Json]:
    """Yield the ServiceAccount of a component and the RoleBinding to the chart's role (KIND/NAME); the operator can
    only bind roles of the chart."""
    name = child(key, component)
    yield manifest("v1", "ServiceAccount", key.namespace, name, key, pool, component)
    kind, _, role_name = role.partition("/")
    bound = manifest(f"{_RBAC}/v1", "RoleBinding", key.namespace, name, key, pool, component)
    bound["roleRef"] = {"apiGroup": _RBAC, "kind": kind, "name": role_name}
    bound["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": key.namespace}]
    yield bound


def budget(key: Key, pool: Live[GpuPool], component: str) -> Json:
    """Return the budget of a component: one pod at a time may be evicted."""
    body = manifest("policy/v1", "PodDisruptionBudget", key.namespace, child(key, component), key, pool, component)
    body["spec"] = {"maxUnavailable": 1, "selector": {"matchLabels": selector(key, component)}}
    return body
