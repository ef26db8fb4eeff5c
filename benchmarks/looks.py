"""What a look of the operator at one pool of many ModelPools costs: processor time of what it computes.

A serving pool is looked at every 5 s, on the loop that receives changes and looks at all other pools.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from benchmarks.report import Row, report

from aegaeon_operator.__main__ import COLLECTED
from aegaeon_operator.kube.gather import ParsedPools
from aegaeon_operator.kube.scheduler import facts
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.conditions import is_due
from aegaeon_operator.reconcile.cluster.desired import Decisions
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Key, Report
from aegaeon_operator.reconcile.cluster.figures import figures
from aegaeon_operator.reconcile.cluster.memo import Memo
from aegaeon_operator.reconcile.cluster.platform import Platform
from aegaeon_operator.reconcile.cluster.progress import ProgressMonitor
from aegaeon_operator.reconcile.cluster.report import Reports
from aegaeon_operator.reconcile.cluster.windows import Windows
from aegaeon_operator.spec.resources import API_VERSION
from aegaeon_proto.v1 import admin_pb2, gateway_pb2, model_pb2

KEY, PLATFORM = Key("infra", "pool"), Platform("control", "engine", "vllm")
MODEL_POOLS, REPEATS, BAR_S = 2500, 5, 0.3
MEMORY = {"deviceBytes": "13Mi", "slabSize": "256Ki", "hostModelCache": "32Mi", "hostKv": "12Mi"}
POOL = {"engines": {"replicas": 2}, "memory": MEMORY, "volumes": {"models": {"path": "/srv/models"}}}
SECRETS = {(KEY.namespace, f"k{at}"): {"keys": f"key-of-tenant-{at}"} for at in range(MODEL_POOLS)}


def manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"namespace": KEY.namespace, "name": name, "uid": f"{kind}-{name}", "generation": 1}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def of_tenant(at: int, folder: str = "m") -> dict[str, Any]:
    """One model, one tenant with a key."""
    tenant = {"name": f"t{at}", "keySecretRef": {"name": f"k{at}", "key": "keys"}}
    models = [{"name": f"model-{at}", "source": {"hostPath": f"{folder}{at}"}}]
    return manifest("ModelPool", f"m{at}", {"gpuPoolRef": {"name": KEY.name}, "models": models, "tenants": [tenant]})


@dataclass
class Looks:
    """At one pool; `tokens` that each model has answered since the scheduler's start."""

    store: Store = field(default_factory=Store)
    parsed: ParsedPools = field(default_factory=ParsedPools)
    decisions: Decisions = field(default_factory=Decisions)
    reports: Reports = field(default_factory=Reports)
    windows: Windows = field(default_factory=Windows)
    progress: ProgressMonitor = field(default_factory=ProgressMonitor)
    models: Memo = field(default_factory=Memo)
    tokens: int = 0
    version: int = 0
    now: float = 0.0

    def put(self, body: dict[str, Any]) -> None:
        self.version += 1
        self.store.put({**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}})

    def status(self) -> admin_pb2.AdminStatus:
        """As the scheduler gives it."""
        names = [f"model-{at}" for at in range(MODEL_POOLS)]
        specs = [model_pb2.ModelSpec(name=name) for name in names]
        cached = [gateway_pb2.ModelStatus(spec=one, phase=model_pb2.MODEL_PHASE_CACHED) for one in specs]
        tokens = {"output_tokens": self.tokens, "tokens_on_time": self.tokens, "busy_s": self.tokens / 900}
        traffic = [gateway_pb2.ModelTraffic(model=name, **tokens) for name in names]
        pool, catalog = gateway_pb2.PoolStatus(models=traffic), gateway_pb2.CatalogStatus(models=cached)
        return admin_pb2.AdminStatus(incarnation="here", pool=pool, catalog=catalog)

    def look(self) -> tuple[float, list[Report]]:
        """Processor seconds, and what it reports."""
        answer, began = self.status(), time.process_time()
        self.now += 5.0
        seen = self.parsed.observe(KEY, self.store.texts_of(KEY), datetime.now(UTC), PLATFORM)
        spoken = self.windows.of(self.progress.of(facts(answer, 1 << 20, self.models), self.now), self.now)
        seen = replace(seen, secrets=dict(SECRETS), scheduler=spoken)
        reported = self.reports.of(seen, self.decisions.of(seen), {})
        due = [one for one in reported if is_due(one, self.now, self.now)]
        figures(seen, due, {})
        return time.process_time() - began, reported

    def edit(self, at: int) -> float:
        """Processor seconds of the look after a change of one ModelPool."""
        body = of_tenant(at, "edited")
        before = self.store.get(ChildKey("ModelPool", KEY.namespace, body["metadata"]["name"])) or {}
        self.put({**body, "metadata": {**body["metadata"], "generation": 2}, "status": before.get("status", {})})
        return self.look()[0]

    def settle(self) -> float:
        """The first look, whose statuses are written; its processor seconds."""
        for body in (manifest("GpuPool", KEY.name, POOL), *map(of_tenant, range(MODEL_POOLS))):
            self.put(body)
        first, reported = self.look()
        written = {one.about.uid: one.status for one in reported}
        for body in self.store.of_pool(KEY):
            self.put({**body, "status": written[body["metadata"]["uid"]]})
        self.look()
        return first


def measure() -> list[Row]:
    gc.set_threshold(*COLLECTED)
    looks = Looks()
    first = looks.settle()
    at_rest = [looks.look()[0] for _ in range(REPEATS)]
    edited = [looks.edit(at) for at in range(REPEATS)]
    busy = []
    for _ in range(REPEATS + 1):
        looks.tokens += 500
        busy.append(looks.look()[0])
    of = f"a look at {MODEL_POOLS:,} ModelPools"
    return [
        Row(f"{of}: one was edited", statistics.median(edited), "CPU s", BAR_S, "<="),
        Row(f"{of}: the first", first, "CPU s"),
        Row(f"{of}: at rest", statistics.median(at_rest), "CPU s", BAR_S, "<="),
        Row(f"{of}: every model has answered since", statistics.median(busy[1:]), "CPU s", BAR_S, "<="),
        Row(f"{of}: every status is another one", busy[0], "CPU s"),
    ]


def main() -> int:
    return 0 if report("looks", measure()) else 1


if __name__ == "__main__":
    sys.exit(main())
