"""The node with the scheduler that leads vanishes: its link goes down, and nothing closes its connections."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from openai import OpenAIError

from aegaeon_cli.demo import clients
from e2e.cluster.layout import Node, default_layout
from e2e.cluster.network import cut
from e2e.installation import SYSTEM
from e2e.kubectl import kubectl
from e2e.load import Load
from e2e.manifests import RED, gpu_pool, keys, model_pool
from e2e.polling import poll
from e2e.pool import PORT, Pod, PodsOfPool, a_pool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420, func_only=True)]
MODELS = {"llama": RED}
# Seconds from the cut to the first answer of a new request.
WITH_STANDBY_S, WITHOUT_S = 15, 60
# From the cut to the last connection that the Service leads to the lost node; and how long that is watched.
CONNECTS_S, _WATCHED_S = 20, 45
_BACK_S = 180  # until Kubernetes has a node back and its pods are ready


@contextmanager
def spread_pool(kubeconfig: Path, namespace: str, standby: bool) -> Iterator[PodsOfPool]:
    """A gateway and an engine on each of two nodes."""
    spec = gpu_pool(engines={"replicas": 2}, scheduling={"standby": standby})
    with a_pool(kubeconfig, namespace, spec) as made:
        made.apply(keys("red", RED), model_pool("red", [*MODELS]))
        made.wait_until_ready()
        yield made


@pytest.mark.parametrize(("standby", "bar_s"), [(True, WITH_STANDBY_S), (False, WITHOUT_S)])
def test_new_requests_are_answered_soon_after_the_node_of_the_scheduler_is_lost(
    release: str, own_cluster: Path, models: Path, standby: bool, bar_s: float
) -> None:
    stays, goes = default_layout().nodes[:2]  # services are reached through the first
    with spread_pool(own_cluster, "aegaeon-lost-node", standby) as pool:
        bring_leader_to(pool, goes)
        (gateway,) = on(pool, "gateway", stays)
        assert on(pool, "engine", stays), "an engine that outlives the cut"
        url = gateway.url
        with Load(url, MODELS, models, people=3) as load:
            load.wait_for_answers(3)
            answers: list[str] = []
            begun = threading.Event()
            running = threading.Thread(target=long_answer, args=(url, answers, begun))
            running.start()
            assert begun.wait(60), "a stream before the cut: what comes after it may wait in vain"
            with cut(default_layout(), goes):
                took = first_answer(url, time.monotonic(), 4 * bar_s)
                print(f"standby {standby}: {took:.1f} s from the cut to the first new answer")
                running.join(bar_s)
                said = health(url)
        pool.wait_until_all_ready("gateway", 2, _BACK_S)
        pool.wait_until_all_ready("engine", 2, _BACK_S)
        pool.wait_until_ready(_BACK_S)
        assert took <= bar_s
        assert said == "attached"
        assert answers == [long_answer(url, [], begun)], "a stream through the gateway that was left lost nothing"
        assert load.verdict().differences == ()
        assert load.failures == [] or not standby, "without one, requests wait for `hold` at most"


def test_a_gateway_and_the_pool_report_that_the_scheduler_is_unavailable(
    release: str, own_cluster: Path, models: Path
) -> None:
    stays, goes = default_layout().nodes[:2]
    with spread_pool(own_cluster, "aegaeon-lost-node", standby=False) as pool:
        bring_leader_to(pool, goes)
        (gateway,) = on(pool, "gateway", stays)
        url = gateway.url
        with cut(default_layout(), goes):
            poll("the gateway says so", lambda: health(url) == "unavailable", 15)
            poll("the pool says so", lambda: condition(pool, "SchedulerReady") == "False", 30)
        pool.wait_until_ready(_BACK_S)
        poll("it is back", lambda: health(url) == "attached", 30)


def test_no_connection_goes_for_long_to_the_gateway_of_a_lost_node(release: str, own_cluster: Path) -> None:
    """One of the others takes it; Kubernetes alone needs most of a minute."""
    stays, goes = default_layout().nodes[:2]
    with spread_pool(own_cluster, "aegaeon-lost-node", standby=False) as pool:
        bring_leader_to(pool, stays)
        bring_operator_to(own_cluster, stays, goes)
        assert on(pool, "gateway", stays), "one that outlives the cut"
        assert on(pool, "gateway", goes), "one that is lost"
        service = urlsplit(pool.url)
        with cut(default_layout(), goes):
            begun = last = time.monotonic()
            failed = 0
            while (at := time.monotonic()) < begun + _WATCHED_S:
                if not connects(str(service.hostname)):
                    last, failed = at, failed + 1
                time.sleep(0.1)  # as clients do: nothing announces an endpoint that has gone
        print(f"{failed} connects failed, the last one {last - begun:.1f} s after the cut")
        pool.wait_until_all_ready("gateway", 2, _BACK_S)
        pool.wait_until_ready(_BACK_S)
    assert failed, "there was nothing to be taken out of the Service"
    assert last - begun <= CONNECTS_S


def connects(host: str) -> bool:
    try:
        with socket.create_connection((host, PORT), timeout=1.0):
            return True
    except OSError:
        return False


def bring_operator_to(kubeconfig: Path, node: Node, other: Node) -> None:
    """Both replicas: the one that leads is then on the node. The spare leaves it again a minute later."""
    system = (kubeconfig, "-n", SYSTEM)
    kubectl(kubeconfig, "cordon", other.name)
    try:
        label, where = "app.kubernetes.io/name=aegaeon-operator", f"--field-selector=spec.nodeName={other.name}"
        kubectl(*system, "delete", "pod", "-l", label, where, "--wait=true")
        kubectl(*system, "rollout", "status", "deployment", "--timeout=120s")
    finally:
        kubectl(kubeconfig, "uncordon", other.name)


def bring_leader_to(pool: PodsOfPool, node: Node) -> None:
    """The pod that holds the Lease runs there; other pods are deleted until it does."""

    def there() -> bool:
        holder = leader(pool)
        if holder is not None and holder.node != node.name:
            alone = not pool.pods("standby")
            if alone:
                pool.kubectl("cordon", holder.node)  # its successor starts elsewhere
            try:
                pool.kubectl("delete", "pod", holder.name, "--wait=true")
                pool.wait_until("another one leads", lambda: leader(pool) not in (None, holder))
            finally:
                if alone:
                    pool.kubectl("uncordon", holder.node)
        return holder is not None and holder.node == node.name

    poll(f"the leader runs on {node.name}", there, 180)
    pool.wait_until_ready()


def leader(pool: PodsOfPool) -> Pod | None:
    lease = json.loads(pool.kubectl("get", "lease", f"{pool.name}-scheduler", "-o", "json"))
    pods = (*pool.pods("scheduler"), *pool.pods("standby"))
    return next((pod for pod in pods if pod.name == lease["spec"]["holderIdentity"]), None)


def on(pool: PodsOfPool, component: str, node: Node) -> list[Pod]:
    return [pod for pod in pool.pods(component) if pod.node == node.name]


def condition(pool: PodsOfPool, kind: str) -> str:
    found = json.loads(pool.kubectl("get", "gpupool", pool.name, "-o", "json"))["status"]["conditions"]
    return next(str(one["status"]) for one in found if one["type"] == kind)


def health(url: str) -> str:
    return str(json.loads(clients.page(f"{url}/health"))["scheduler"])


def first_answer(url: str, since: float, within_s: float) -> float:
    """Seconds after `since` at which a request that was made after it had its answer."""

    def asked() -> float:
        try:
            with clients.client(url, RED, timeout=60) as client:
                client.completions.create(model="llama", prompt="Hello", max_tokens=1)
        except OpenAIError:
            return 0.0
        return time.monotonic() - since

    return poll("a new request is answered", asked, within_s)


def long_answer(url: str, answers: list[str], begun: threading.Event) -> str:
    """Greedy, so that it is the same each time; put into `answers` as well. `begun` is set at the first token."""
    with clients.client(url, RED, timeout=180) as client:
        chunks = client.completions.create(
            model="llama", prompt="The quick brown fox", max_tokens=400, temperature=0, stream=True
        )
        texts = []
        for chunk in chunks:
            begun.set()
            texts.append(chunk.choices[0].text)
        answers.append("".join(texts))
    return answers[-1]
