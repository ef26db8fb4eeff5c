"""A state of a pool and its ModelPools: what there is, the statuses of the operator, what `kubectl get` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from operator_objects import KEY, NOW, Json, observed
from operator_table import table

from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import (
    ChildKey,
    EngineFacts,
    ModelFacts,
    Report,
    SchedulerFacts,
    SuspectFacts,
)
from aegaeon_operator.reconcile.cluster.report import reports

CACHED = ModelFacts("cached")
ANSWERED_AT = int(NOW.timestamp()) - 35
SERVED = ModelFacts("cached", resident=True, output_tokens=1000, tokens_on_time=998, token_s=0.01)
PODS = {
    "pool-scheduler-7d9-x": "scheduler",
    "pool-gateway-5c4-a": "gateway",
    "pool-gateway-5c4-b": "gateway",
    "pool-engine-0": "engine",
    "pool-engine-1": "engine",
}


@dataclass(frozen=True)
class State:
    """What is there. `pods` of the name are other than ready; `ready` are fewer than there should be, by component."""

    title: str
    objects: tuple[Json, ...]
    pods: Mapping[str, Json | None] = field(default_factory=dict)
    models: Mapping[str, ModelFacts] = field(default_factory=lambda: {"llama": SERVED})
    detached: tuple[str, ...] = ()
    components: Mapping[str, str] = field(default_factory=lambda: PODS)
    scheduler: bool = True
    refused: Mapping[str, str] = field(default_factory=dict)
    changing: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[ChildKey, str] = field(default_factory=dict)
    seen: Mapping[str, Any] = field(default_factory=dict)
    redis_away: Mapping[str, str] = field(default_factory=dict)
    suspects: tuple[SuspectFacts, ...] = ()
    routes: tuple[Json, ...] = ()
    rolling: bool = False
    outside: tuple[int, ...] = (1 << 30, 600 << 20)  # bytes that each engine has reserved, and took, beside its slabs
    says: Mapping[str, Any] = field(default_factory=dict)  # more facts of the scheduler

    def reports(self) -> list[Report]:
        """The statuses as the operator gives them."""
        base = observed(*self.objects, **self.seen)
        pods = tuple(
            self.pods.get(name) or pod(name, component)
            for name, component in self.components.items()
            if self.pods.get(name, {}) is not None
        )
        ready = [one["metadata"]["labels"]["app.kubernetes.io/component"] for one in pods if _is_ready(one)]
        children = [_workload(one, ready, self.rolling) for one in desired(base).manifests]
        now = observed(*self.objects, *children, *self.routes, *pods, scheduler=self._facts(), **self.seen)
        return reports(now, desired(now), self.failures)

    def _facts(self) -> SchedulerFacts | None:
        if not self.scheduler:
            return None
        roles = {"engine": "unified", "prefill": "prefill", "decode": "decode"}
        engines = tuple(
            EngineFacts(
                name, roles[component], _is_ready(self.pods.get(name) or pod(name, component)), 0, 0.0, *self.outside
            )
            for name, component in self.components.items()
            if component in roles and name not in self.detached and self.pods.get(name, {}) is not None
        )
        answered = any(model.output_tokens for model in self.models.values())
        says = {"answered_at": ANSWERED_AT if answered else 0, **self.says}
        return SchedulerFacts(
            "one",
            self.models,
            engines,
            refused=self.refused,
            changing=self.changing,
            redis_away=self.redis_away,
            suspects=self.suspects,
            **says,
        )

    def bodies(self) -> list[Json]:
        """The objects with their statuses."""
        statuses = {one.about.uid: one.status for one in self.reports()}
        there = json.loads(json.dumps(self.objects))
        return [{**one, "status": statuses[one["metadata"]["uid"]]} for one in there]

    def table(self) -> str:
        """What `kubectl get gpool,mpool` prints."""
        return table(self.bodies(), NOW)


def pod(name: str, component: str, **status: Any) -> Json:
    """One that is ready, unless the status says otherwise."""
    said: Json = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": component, "ready": True, "started": True, "state": {"running": {}}}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": KEY.namespace, "name": name, "labels": {"app.kubernetes.io/component": component}},
        "spec": {"nodeName": "node-1"},
        "status": said | status,
    }


def broken(name: str, component: str, state: Json, **about: Any) -> Json:
    """A pod whose container is in such a state."""
    container = {"name": component, "image": "registry.example/engine:2", "ready": False, "state": state, **about}
    unready = [{"type": "Ready", "status": "False"}]
    return pod(name, component, phase="Pending", conditions=unready, containerStatuses=[container])


def unplaced(name: str, component: str, message: str) -> Json:
    """A pod that finds no node."""
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    found = pod(name, component, phase="Pending", conditions=[placed], containerStatuses=[])
    found["spec"] = {}
    return found


def suspended(name: str, component: str, queue: str = "") -> Json:
    """A pod that a scheduling gate holds: Kueue's where it is of a queue, else another controller's."""
    gate = "kueue.x-k8s.io/admission" if queue else "example.com/quota"
    found = unplaced(name, component, "Scheduling is blocked due to non-empty scheduling gates")
    found["spec"] = {"schedulingGates": [{"name": gate}]}
    found["metadata"]["labels"] |= {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return found


def _is_ready(body: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in body["status"].get("conditions", ()))


def _workload(manifest: Json, ready: list[str], rolling: bool) -> Json:
    """As controllers of the cluster would have it, with so many ready pods."""
    if manifest["kind"] not in ("Deployment", "StatefulSet"):
        return manifest
    wanted = manifest["spec"]["replicas"]
    count = ready.count(manifest["metadata"]["labels"]["app.kubernetes.io/component"])
    status = {"observedGeneration": 1, "replicas": wanted, "updatedReplicas": wanted, "readyReplicas": count}
    return {**manifest, "status": {**status, "currentRevision": "a", "updateRevision": "b" if rolling else "a"}}
