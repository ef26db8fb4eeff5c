"""A pool whose engines prefill or decode, each on a GPU of its own, as far as Kubernetes can tell.

The nodes offer GPUs by a device plugin (e2e/cluster/device_plugin.py); there is nothing behind them, and the engines
compute on CPUs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.node import GPUS
from e2e.load import Load
from e2e.manifests import RED, gpu_pool, keys, model_pool
from e2e.pool import PodsOfPool, a_pool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]
RESOURCE, GPUS_OF_A_NODE = GPUS[0], int(GPUS[1])
MODELS = {"llama": RED, "qwen2": RED}


@pytest.fixture(scope="module")
def split(release: str, own_cluster: Path, models: Path) -> Iterator[PodsOfPool]:
    """Two engines that prefill, two that decode, one gateway."""
    spec: dict[str, Any] = {
        "prefill": {"replicas": 2},
        "decode": {"replicas": 2},
        "accelerator": {"resourceName": RESOURCE},
        "gateway": {"replicas": 1},
    }
    with a_pool(own_cluster, "aegaeon-split", gpu_pool(**spec)) as made:
        made.apply(keys("red", RED), model_pool("red", [*MODELS]))
        made.wait_until_ready()
        yield made


def test_every_engine_has_a_gpu_of_its_own(split: PodsOfPool) -> None:
    given = Counter(
        (pod.node, split.kubectl("exec", pod.name, "--", "printenv", "NVIDIA_VISIBLE_DEVICES").strip())
        for role in ("prefill", "decode")
        for pod in split.pods(role)
    )

    assert len(given) == given.total() == 4


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_every_client_gets_all_of_its_answer_when_an_engine_dies(split: PodsOfPool, models: Path, role: str) -> None:
    with Load(split.url, MODELS, models, people=3) as load:
        load.wait_for_answers(3)
        split.kill(split.pods(role)[0])
        load.wait_for_answers(6)
        split.wait_until_all_ready(role, 2)
        load.wait_for_answers(6)

    assert load.failures == []
    assert load.verdict().differences == ()
    split.wait_until_ready()


def test_an_engine_without_a_gpu_stays_pending_and_the_pool_reports_it(split: PodsOfPool) -> None:
    free = sum(GPUS_OF_A_NODE for _ in {pod.node for pod in split.pods("prefill")}) - len(split.pods("prefill"))
    split.patch({"decode": {"replicas": free + 1}})
    try:
        split.wait_until("one cannot be placed", lambda: unplaced(split) == 1)
        assert f"Insufficient {RESOURCE}" in why_unplaced(split)
    finally:
        split.patch({"decode": {"replicas": 2}})
    split.wait_until_all_ready("decode", 2)
    split.wait_until_ready()


def unplaced(pool: PodsOfPool) -> int:
    return sum(not pod.node for pod in pool.pods("decode"))


def why_unplaced(pool: PodsOfPool) -> str:
    """As Kubernetes' scheduler says it."""
    found = json.loads(pool.kubectl("get", "pods", "--field-selector=spec.nodeName=", "-o", "json"))["items"]
    return str(found[0]["status"]["conditions"][0]["message"])
