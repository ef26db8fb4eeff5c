"""A pool whose engines prefill or decode, each on a GPU of its own, as far as Kubernetes can tell.

The nodes offer GPUs by a device plugin (e2e/cluster/device_plugin.py); there is nothing behind them, and the engines
compute on CPUs.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import InternalServerError

from aegaeon_cli.demo import clients
from e2e.cluster.layout import Node, default_layout
from e2e.cluster.network import cut
from e2e.cluster.node import GPUS
from e2e.load import Load
from e2e.manifests import RED, gpu_pool, keys, model_pool
from e2e.pool import Pod, PodsOfPool, a_pool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]
RESOURCE, GPUS_OF_A_NODE = GPUS[0], int(GPUS[1])
MODELS = {"llama": RED, "qwen2": RED}
HOLD_S = 5
SPLIT: dict[str, Any] = {"prefill": {"replicas": 2}, "decode": {"replicas": 2}}
UNITED: dict[str, Any] = {"engines": {"replicas": 2}}
BACK_S = 180  # until Kubernetes has a node back and its pods are ready


@pytest.fixture(scope="module")
def split(release: str, own_cluster: Path, models: Path) -> Iterator[PodsOfPool]:
    """Two engines that prefill, two that decode, one gateway."""
    spec: dict[str, Any] = {
        **SPLIT,
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

    load.check()
    split.wait_until_ready()


@pytest.mark.timeout(600, func_only=True)
def test_every_client_gets_all_of_its_answer_when_the_node_of_a_decoder_is_cut(split: PodsOfPool, models: Path) -> None:
    stays, goes = default_layout().nodes[:2]
    for node, which in ((stays, 0), (goes, 1)):
        for role in ("prefill", "decode"):
            bring(split, node, *(pod for pod in split.pods(role) if pod.name.endswith(f"-{which}")))
    for component in ("gateway", "scheduler"):
        bring(split, stays, *split.pods(component))
    with Load(split.url, MODELS, models, people=3) as load:
        load.wait_for_answers(3)
        with cut(default_layout(), goes):
            load.wait_for_answers(12, 120)
    for role in ("prefill", "decode"):
        split.wait_until_all_ready(role, 2, BACK_S)
    split.wait_until_ready(BACK_S)
    load.check()


def test_requests_end_in_time_and_the_pool_says_why_while_nothing_decodes(split: PodsOfPool) -> None:
    restarted, count = [*split.pods("scheduler"), *split.pods("gateway")], len(split.pods())
    split.patch({"scheduling": {"hold": f"{HOLD_S}s"}})
    try:
        split.wait_until("the bound is in force", lambda: replaced(split, restarted, count), BACK_S)
        split.wait_until_ready()
        split.patch({"decode": {"replicas": 0}})
        split.wait_until("no decode engine is left", lambda: not split.pods("decode"))
        split.wait_until("its models are not routable", lambda: routable(split) == "False")
        with clients.client(split.url, RED, timeout=60) as client:
            began = time.monotonic()
            with pytest.raises(InternalServerError) as refused:
                client.completions.create(model="llama", prompt="Hello", max_tokens=4)
        assert time.monotonic() - began <= HOLD_S + 2
        assert refused.value.status_code == 503
        assert refused.value.response.headers["Retry-After"]
        assert "llama is not served" in refused.value.message
    finally:
        split.patch({"decode": {"replicas": 2}, "scheduling": {"hold": None}})
    split.wait_until_all_ready("decode", 2)
    split.wait_until_ready()


@pytest.mark.timeout(900, func_only=True)
def test_no_answer_is_lost_or_changed_while_roles_are_united_and_split_again_under_load(
    split: PodsOfPool, models: Path
) -> None:
    united, roles = {"engine": 2}, {"prefill": 2, "decode": 2}
    with Load(split.url, MODELS, models, people=3, probe_s=1.0) as load:
        load.wait_for_answers(6)
        for spec, before, old, new in ((UNITED, SPLIT, roles, united), (SPLIT, UNITED, united, roles)):
            split.patch({**dict.fromkeys(before), **spec})
            wait_for_succession(split, old, new)
            load.wait_for_answers(12)
    load.check()
    split.wait_until_ready()


def wait_for_succession(pool: PodsOfPool, old: Mapping[str, int], new: Mapping[str, int]) -> None:
    """Until all engines of the new roles are ready (attached) and none of the old ones is left; no old one goes before
    each new role has one."""

    def over() -> bool:
        left = sum(len(pool.pods(role)) for role in old)
        ready = {role: sum(pod.ready for pod in pool.pods(role)) for role in new}
        assert left == sum(old.values()) or all(ready.values()), f"{left} old engines are left beside {ready}"
        return not left and ready == new

    pool.wait_until(f"{new} in the place of {old}", over, BACK_S)


def bring(pool: PodsOfPool, node: Node, *pods: Pod) -> None:
    """Those that run elsewhere are deleted, so that others come there in their place."""
    elsewhere = [pod for pod in pods if pod.node != node.name]
    if not elsewhere:
        return
    count, names = len(pool.pods()), [pod.name for pod in elsewhere]
    closed = [other.name for other in default_layout().nodes if other.name != node.name]
    pool.kubectl("cordon", *closed)
    try:
        pool.kubectl("delete", "pod", "--wait=true", *names)
        pool.wait_until(f"{names} come to {node.name}", lambda: replaced(pool, elsewhere, count), BACK_S)
    finally:
        pool.kubectl("uncordon", *closed)
    pool.wait_until_ready()


def replaced(pool: PodsOfPool, old: Sequence[Pod], count: int) -> bool:
    """Whether the pool has so many pods, all of them ready and none of these."""
    gone, now = {pod.uid for pod in old}, pool.pods()
    return len(now) == count and all(pod.ready and pod.uid not in gone for pod in now)


def routable(pool: PodsOfPool) -> str:
    """The status of that condition of its ModelPool."""
    found = json.loads(pool.kubectl("get", "modelpool", "red", "-o", "json"))["status"]["conditions"]
    return next(str(one["status"]) for one in found if one["type"] == "Routable")


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
