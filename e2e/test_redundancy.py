"""After a drain and an uncordon, what stands by comes back to another node than what it stands by for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from aegaeon_kube.server import connect
from aegaeon_operator.kube.client import PODS, Cluster
from e2e.cluster.layout import default_layout
from e2e.installation import SYSTEM
from e2e.kubectl import kubectl
from e2e.load import Load
from e2e.manifests import RED, gpu_pool, keys, model_pool
from e2e.polling import poll
from e2e.pool import a_pool
from e2e.test_lost_node import leader, on

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]
MODELS = {"llama": RED}
NAMESPACE = "aegaeon-redundancy"
# A node must be free for a minute; looks, lists of nodes and the start of a pod come on top.
APART_S = 180
# What moves of the operator's own may cost a client.
STALL_S = 2.0


def condition(of: dict[str, Any]) -> tuple[str, str]:
    """Status and reason of Redundant."""
    conditions = of.get("status", {}).get("conditions", ())
    return next(((each["status"], each["reason"]) for each in conditions if each["type"] == "Redundant"), ("", ""))


async def test_the_pod_that_was_seen_is_evicted_and_no_other(
    namespaced: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real API server: uid and resourceVersion are preconditions, and a budget is an answer."""
    kubectl(namespaced, "delete", "quota", "nothing-runs")
    namespace = kubectl(namespaced, "config", "view", "--minify", "-o", "jsonpath={..namespace}")
    container = {"name": "one", "image": "none.invalid/none"}
    metadata = {"name": "standby", "labels": {"app": "standby"}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    kubectl(namespaced, "apply", "--validate=false", "-f", "-", stdin=json.dumps(body))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    async with connect() as api:
        cluster = Cluster(api)
        (seen,) = (await cluster.list(PODS, namespace, fields="metadata.name=standby")).items
        kubectl(namespaced, "label", "pod", "standby", "changed=yes")
        assert not await cluster.evict(seen)
        (seen,) = (await cluster.list(PODS, namespace, fields="metadata.name=standby")).items
        assert await cluster.evict(seen)
        assert "standby" not in kubectl(
            namespaced, "get", "pods", "--field-selector=status.phase=Running", "-o", "name"
        )


def test_after_a_drain_nothing_that_must_survive_stays_on_one_node(
    release: str, own_cluster: Path, models: Path
) -> None:
    drained = default_layout().nodes[0]
    system = (own_cluster, "-n", SYSTEM)

    def operators() -> list[str]:
        pods = json.loads(
            kubectl(*system, "get", "pods", "-l", "app.kubernetes.io/name=aegaeon-operator", "-o", "json")
        )
        return sorted(pod["spec"].get("nodeName", "") for pod in pods["items"])

    with a_pool(own_cluster, NAMESPACE, gpu_pool(engines={"replicas": 2}, scheduling={"standby": True})) as pool:
        pool.apply(keys("red", RED), model_pool("red", [*MODELS]))
        pool.wait_until_ready()

        def redundant() -> tuple[str, str]:
            return condition(json.loads(pool.kubectl("get", "gpupool", pool.name, "-o", "json")))

        with Load(pool.url, MODELS, models, people=2) as load:
            load.wait_for_answers(3)
            try:
                pool.kubectl("drain", drained.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
                poll("both schedulers share a node", lambda: redundant() == ("False", "SharedNode"), 90)
            finally:
                pool.kubectl("uncordon", drained.name)
            freed, led = time.monotonic(), leader(pool)
            pool.wait_until_all_ready("engine", 2)
            assert not apart(pool), "what comes from now on is of the moves, not of the drain"
            quiet = time.monotonic()
            poll("they are on two nodes", lambda: apart(pool), APART_S)
            print(f"the standby is on another node {time.monotonic() - freed:.0f} s after uncordon")
            assert leader(pool) == led, "who leads is not moved"
            poll("so are the operator's replicas", lambda: len(set(operators())) == 2, APART_S)
            load.wait_for_answers(4)
            stall_s = load.longest_wait(quiet)
            print(f"the longest wait for a token while they moved: {stall_s:.2f} s")
            assert stall_s <= STALL_S
            pool.kubectl("rollout", "restart", f"deployment/{pool.name}-gateway")
            poll("the pool says so", lambda: redundant() == ("True", "Spread"), 120)
            load.wait_for_answers(6)
        assert on(pool, "standby", drained) or on(pool, "scheduler", drained)
    load.check()


def apart(pool: Any) -> bool:
    """Both schedulers are ready, on two nodes."""
    pods = [*pool.pods("scheduler"), *pool.pods("standby")]
    return len(pods) == 2 and all(pod.ready for pod in pods) and len({pod.node for pod in pods}) == 2
