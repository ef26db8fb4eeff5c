"""examples/autoscaling/keda.yaml as it stands: KEDA's own operator scales a pool from zero, and by what waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import keda
from e2e.cluster.layout import Layout
from e2e.kubectl import REPOSITORY
from e2e.load import Load
from e2e.manifests import POOL, RED, gpu_pool, keys, model_pool
from e2e.pool import PodsOfPool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]
EXAMPLE = str(REPOSITORY / "examples" / "autoscaling" / "keda.yaml")
NAMESPACE = "default"  # of the example
MODELS = {"llama": RED, "qwen2": RED}
METRICS = 7001  # of schedulers


@pytest.fixture(scope="module")
def empty_pool(release: str, own_cluster: Path, models: Path) -> Iterator[PodsOfPool]:
    """The pool that the example names, without engines."""
    made = PodsOfPool(own_cluster, NAMESPACE, POOL)
    owned = ("modelpool/red", f"gpupool/{POOL}", "secret/red-keys")
    try:
        made.apply(gpu_pool(engines={"replicas": 0}, gateway={"replicas": 1}, scheduling={"holdStart": "10m"}))
        made.apply(keys("red", RED), model_pool("red", [*MODELS]))
        made.wait_until_all_ready("scheduler", 1, 180)
        made.wait_until_all_ready("gateway", 1, 180)
        yield made
    finally:
        made.kubectl("annotate", f"gpupool/{POOL}", "serving.aegaeon.io/allow-deletion=true")
        made.kubectl("delete", "--ignore-not-found", "--timeout=120s", *owned)


@pytest.fixture
def scaled(empty_pool: PodsOfPool, nodes: Layout, tmp_path: Path) -> Iterator[PodsOfPool]:
    """By KEDA, with the series that a PodMonitor of the chart would bring."""
    (scheduler,) = empty_pool.pods("scheduler")
    labels = {"namespace": NAMESPACE, "app_kubernetes_io_instance": POOL}
    target: dict[str, Any] = {"targets": [f"{scheduler.ip}:{METRICS}"], "labels": labels}
    kubeconfig = empty_pool.kubeconfig
    with keda.prometheus(kubeconfig, nodes, [target], tmp_path), keda.installed(kubeconfig, nodes):
        try:
            empty_pool.kubectl("apply", "-f", EXAMPLE)
            empty_pool.kubectl("wait", "--for=condition=Ready", "scaledobject/demo-engines", "--timeout=120s")
            yield empty_pool
        finally:
            empty_pool.kubectl("delete", "-f", EXAMPLE, "--ignore-not-found", "--timeout=120s")


def test_keda_starts_the_first_engine_for_a_request_adds_more_for_a_crowd_and_returns_to_zero(
    scaled: PodsOfPool, models: Path
) -> None:
    assert wanted(scaled) == 0
    with Load(scaled.url, {"llama": RED}, models, people=1) as first:
        first.wait_for_answers(2, 240)
    with Load(scaled.url, MODELS, models, people=11) as crowd:
        scaled.wait_until("22 sequences, eight an engine: three", lambda: wanted(scaled) == 3, 180)
        crowd.wait_for_answers(6, 120)
    assert first.failures == crowd.failures == []
    assert first.verdict().differences == crowd.verdict().differences == ()

    scaled.kubectl("patch", "scaledobject", "demo-engines", "--type=merge", "-p", '{"spec": {"cooldownPeriod": 5}}')
    scaled.wait_until("no engine is wanted", lambda: wanted(scaled) == 0, 180)


def wanted(pool: PodsOfPool) -> int:
    """Engines."""
    return int(json.loads(pool.kubectl("get", "gpupool", pool.name, "-o", "json"))["spec"]["engines"]["replicas"])
