"""examples/kueue as it stands: Kueue itself holds engines until their queue has quota, and lets their pool change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import kueue
from e2e.cluster.layout import Layout
from e2e.kubectl import REPOSITORY, kubectl
from e2e.load import Load
from e2e.manifests import POOL, RED, engine_pods, gpu_pool, keys, model_pool
from e2e.pool import PodsOfPool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]
EXAMPLE = str(REPOSITORY / "examples" / "kueue" / "queue.yaml")
NAMESPACE, QUEUE = "default", "gpus"  # of the example
MODELS = {"llama": RED, "qwen2": RED}
MEMORY = "/spec/resourceGroups/0/flavors/0/resources/1/nominalQuota"  # of its ClusterQueue; an engine asks for 512Mi


@pytest.fixture(scope="module")
def queued(release: str, own_cluster: Path, nodes: Layout, models: Path) -> Iterator[PodsOfPool]:
    """A pool of two engines whose queue has no quota left."""
    made = PodsOfPool(own_cluster, NAMESPACE, POOL)
    spec = gpu_pool(engines={"replicas": 2}, gateway={"replicas": 1})
    spec["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": QUEUE}
    with kueue.installed(own_cluster, nodes):
        try:
            kubectl(own_cluster, "apply", "-f", EXAMPLE)
            quota(made, "0")
            made.apply(spec, keys("red", RED), model_pool("red", [*MODELS]))
            yield made
        finally:
            made.kubectl("annotate", f"gpupool/{POOL}", "serving.aegaeon.io/allow-deletion=true")
            owned = ("modelpool/red", f"gpupool/{POOL}", "secret/red-keys")
            made.kubectl("delete", "--ignore-not-found", "--timeout=120s", *owned)
            made.wait_until("no pod is left", lambda: not made.pods(), 120)
            kubectl(own_cluster, "delete", "-f", EXAMPLE, "--ignore-not-found", "--timeout=120s")


def test_engines_wait_for_quota_one_by_one_and_the_pool_serves_with_those_that_have_it(
    queued: PodsOfPool, models: Path
) -> None:
    queued.wait_until_all_ready("gateway", 1, 180)
    queued.wait_until("both are held", lambda: reason(queued) == "Suspended", 120)

    quota(queued, "600Mi")
    queued.wait_until("one is admitted", lambda: reason(queued) == "SomeSuspended", 180)
    with Load(queued.url, MODELS, models, people=1) as load:
        load.wait_for_answers(2, 120)
        assert [bool(pod.node) for pod in queued.pods("engine")].count(True) == 1

        quota(queued, "1200Mi")
        queued.wait_until("both are", lambda: reason(queued) == "AllReady", 180)
        load.wait_for_answers(2, 120)
    load.check()


def test_a_queued_pool_scales_and_its_engines_are_replaced_under_load(queued: PodsOfPool, models: Path) -> None:
    quota(queued, "2Gi")
    queued.wait_until("two serve", lambda: reason(queued) == "AllReady", 180)
    with Load(queued.url, MODELS, models, people=1) as load:
        queued.kubectl("scale", "gpupool", queued.name, "--replicas=3")
        queued.wait_until_all_ready("engine", 3, 180)
        before = {pod.uid for pod in queued.pods("engine")}
        queued.patch({"podTemplate": {**engine_pods("torch"), "env": [{"name": "REGION", "value": "eu"}]}})
        queued.wait_until("all are new", lambda: before.isdisjoint(pod.uid for pod in queued.pods("engine")), 300)
        queued.wait_until_all_ready("engine", 3, 180)
        load.wait_for_answers(2, 120)
    load.check()


def quota(pool: PodsOfPool, memory: str) -> None:
    """Of the ClusterQueue, for all engines together."""
    change = [{"op": "replace", "path": MEMORY, "value": memory}]
    kubectl(pool.kubeconfig, "patch", "clusterqueue", QUEUE, "--type=json", "-p", json.dumps(change))


def reason(pool: PodsOfPool) -> str:
    """Why the pool has its engines, or not."""
    found: dict[str, Any] = json.loads(pool.kubectl("get", "gpupool", pool.name, "-o", "json"))
    conditions = found.get("status", {}).get("conditions", ())
    return next((str(one["reason"]) for one in conditions if one["type"] == "EnginesReady"), "")
