"""What runs and how it is reached: Deployments, StatefulSets, their Services, disruption budgets."""

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
    """All of them; `configs` by component: their pods' configuration."""
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
    """Components that have a pod: the second one where the spec asks for it, or for as long as the first is silent."""
    return SCHEDULERS if spec.scheduling.standby or observed.failover else SCHEDULERS[:1]


def roles(observed: Observed, spec: GpuPoolSpec) -> dict[str, int]:
    """Engines by role: as the autoscaler wants them where it may, else as the spec says."""
    return {role: observed.replicas.get(role, one.replicas) for role, one in spec.roles.items()}


def engine_names(observed: Observed, spec: GpuPoolSpec) -> tuple[str, ...]:
    """All engines that the pool is to have, or has until others can serve: their pods, as their StatefulSets name
    them."""
    counts = {child(observed.key, COMPONENTS[role]): count for role, count in roles(observed, spec).items()}
    for name in (child(observed.key, COMPONENTS[role]) for role in observed.superseded):
        staying = observed.workloads.get(ChildKey("StatefulSet", observed.key.namespace, name))
        counts[name] = staying.asked if staying else 0
    return tuple(f"{stateful_set}-{number}" for stateful_set, count in counts.items() for number in range(count))


def service(key: Key, pool: Live[GpuPool], component: str, headless: bool = False, **ports: int) -> Json:
    """Of one component. A headless one gives its pods names, ready or not."""
    found = manifest("v1", "Service", key.namespace, child(key, component), key, pool, component)
    found["spec"] = {
        "selector": selector(key, component),
        "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports.items()],
    }
    if headless:
        found["spec"] |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return found


def deployment(key: Key, pool: Live[GpuPool], component: str, replicas: int, template: Json) -> Json:
    """Replaced without a gap, but for the scheduler, of which there is one."""
    found = manifest("apps/v1", "Deployment", key.namespace, child(key, component), key, pool, component)
    found["spec"] = {
        "replicas": replicas,
        "selector": {"matchLabels": selector(key, component)},
        "template": template,
        # A scheduler that is to go has its Lease for as long as it lives: a new one beside it could but wait.
        "strategy": {"type": "Recreate"}
        if component in SCHEDULERS
        else {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "revisionHistoryLimit": 2,
    }
    return found


def _stateful_set(key: Key, pool: Live[GpuPool], component: str, replicas: int, template: Json) -> Json:
    """Engines start at once and are replaced one by one: the next when the last is attached, which is readiness."""
    found = manifest("apps/v1", "StatefulSet", key.namespace, child(key, component), key, pool, component)
    found["spec"] = {
        "replicas": replicas,
        "serviceName": child(key, component),
        "selector": {"matchLabels": selector(key, component)},
        "template": template,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 2,
    }
    return found


def _queued(pool: Live[GpuPool], stateful_set: Json) -> Json:
    """With pods that Kueue queues, each for itself.

    A StatefulSet that has the labels is admitted whole, and then Kueue refuses another number of replicas and another
    template.
    """
    given = pool.value.metadata.labels if pool.value else {}
    template = stateful_set["spec"]["template"]["metadata"]
    template["labels"] = {**{name: given[name] for name in KUEUE_LABELS if name in given}, **template["labels"]}
    return stateful_set


def account(key: Key, pool: Live[GpuPool], component: str, role: str) -> Iterator[Json]:
    """Who a component is to the API server, and the role (KIND/NAME) that the chart made for it: the operator can give
    roles of the chart and no others."""
    name = child(key, component)
    yield manifest("v1", "ServiceAccount", key.namespace, name, key, pool, component)
    kind, _, role_name = role.partition("/")
    bound = manifest(f"{_RBAC}/v1", "RoleBinding", key.namespace, name, key, pool, component)
    bound["roleRef"] = {"apiGroup": _RBAC, "kind": kind, "name": role_name}
    bound["subjects"] = [{"kind": "ServiceAccount", "name": name, "namespace": key.namespace}]
    yield bound


def budget(key: Key, pool: Live[GpuPool], component: str) -> Json:
    """Of a component, one pod at a time may be evicted for the cluster's own work."""
    found = manifest("policy/v1", "PodDisruptionBudget", key.namespace, child(key, component), key, pool, component)
    found["spec"] = {"maxUnavailable": 1, "selector": {"matchLabels": selector(key, component)}}
    return found
