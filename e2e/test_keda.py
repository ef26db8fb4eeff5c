"""examples/autoscaling/keda.yaml as it stands: KEDA's own operator scales a pool from zero, by what waits, and back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aegaeon_operator.reconcile.cluster.names import SCHEDULER_METRICS
from e2e import keda
from e2e.cluster.layout import Layout, authority
from e2e.kubectl import REPOSITORY
from e2e.load import Load
from e2e.manifests import POOL, RED, gpu_pool, keys, model_pool
from e2e.pool import PodsOfPool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]
EXAMPLE = str(REPOSITORY / "examples" / "autoscaling" / "keda.yaml")
NAMESPACE = "default"  # of the example
MODELS = {"llama": RED, "qwen2": RED}
COOLDOWN_S = 5  # in the place of the example's five minutes, for which tests do not wait


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


@pytest.fixture(scope="module")
def scaled(empty_pool: PodsOfPool, nodes: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodsOfPool]:
    """By KEDA, with the series that a PodMonitor of the chart would bring."""
    (scheduler,) = empty_pool.pods("scheduler")
    labels = {"namespace": NAMESPACE, "app_kubernetes_io_instance": POOL}
    target: dict[str, Any] = {"targets": [authority(scheduler.ip, SCHEDULER_METRICS)], "labels": labels}
    kubeconfig, folder = empty_pool.kubeconfig, tmp_path_factory.mktemp("prometheus")
    with keda.prometheus(kubeconfig, nodes, [target], folder), keda.installed(kubeconfig, nodes):
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
    print(f"first token after {first.exchanges[0].times[0]:.2f} s")  # the figure of RESULTS.md
    with Load(scaled.url, MODELS, models, people=11) as crowd:
        scaled.wait_until("22 sequences, eight an engine: three", lambda: wanted(scaled) == 3, 180)
        scaled.wait_until_all_ready("engine", 3, 180)
        crowd.wait_for_answers(6, 120)
    first.check()
    crowd.check()

    cool_down(scaled)
    scaled.wait_until("no engine is wanted", lambda: wanted(scaled) == 0, 180)
    scaled.wait_until("no engine is left", lambda: not scaled.pods("engine"), 120)


def test_engines_stay_while_no_scheduler_reports(scaled: PodsOfPool, models: Path) -> None:
    """`ignoreNullValues: "false"` of the example: no value is not "no requests"."""
    cool_down(scaled)
    with Load(scaled.url, {"llama": RED}, models, people=1, patience_s=240) as load:
        load.wait_for_answers(1, 240)
        scaled.kill(scaled.pods("scheduler")[0])  # the next one has an address that is not scraped here
        scaled.kubectl("wait", "--for=condition=Ready=false", "scaledobject/demo-engines", "--timeout=120s")
        load.wait_for_answers(1, 120)
        over = time.monotonic() + 4 * COOLDOWN_S
        scaled.wait_until("the cool-down is long over", lambda: time.monotonic() > over)
    assert wanted(scaled) > 0, "three again, if the crowd was there within the last five minutes"
    assert load.failures == []


def cool_down(pool: PodsOfPool) -> None:
    """The last engine goes soon after the last request."""
    spec = {"spec": {"cooldownPeriod": COOLDOWN_S}}
    pool.kubectl("patch", "scaledobject", "demo-engines", "--type=merge", "-p", json.dumps(spec))


def wanted(pool: PodsOfPool) -> int:
    """Engines."""
    return int(json.loads(pool.kubectl("get", "gpupool", pool.name, "-o", "json"))["spec"]["engines"]["replicas"])
