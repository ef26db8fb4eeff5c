"""A pool on real pods, by helm and kubectl as a user would: it serves, and goes on serving when parts of it die.

The pool of conftest: two engines and two gateways; llama and qwen2 of tenant `red`, mistral of tenant `blue`, of which
`green` may use a little.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import AuthenticationError, NotFoundError, RateLimitError

from aegaeon_cli.demo import clients
from e2e.cluster.control_plane import api_server_away
from e2e.cluster.layout import default_layout
from e2e.kubectl import kubectl
from e2e.load import Load
from e2e.manifests import GREEN, KEYS, QUOTA, RED, model_pool
from e2e.pool import PodsOfPool

OPERATOR = "app.kubernetes.io/name=aegaeon-operator"
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]


def test_outputs_are_those_of_transformers_and_streams_reach_clients_through_the_service(
    pool: PodsOfPool, models: Path
) -> None:
    with Load(pool.url, KEYS, models) as load:
        load.wait_for_answers(18)

    load.check()


def test_a_wrong_key_another_tenants_model_and_too_much_are_refused(pool: PodsOfPool) -> None:
    with pytest.raises(AuthenticationError):
        ask(pool, "wrong", "llama")
    with pytest.raises(NotFoundError, match="mistral"):
        ask(pool, RED, "mistral")
    with pytest.raises(RateLimitError) as refused:
        ask_all_at_once(pool, GREEN, "mistral")
    assert int(refused.value.response.headers["Retry-After"]) > 0


def test_a_model_is_added_and_removed_without_a_restart(pool: PodsOfPool, models: Path) -> None:
    before = {pod.uid for pod in pool.pods()}
    with Load(pool.url, KEYS, models) as load:
        pool.apply(model_pool("red", ["llama", "qwen2", "qwen3"]))
        pool.wait_until_ready()
        with Load(pool.url, {"qwen3": RED}, models) as newcomer:
            newcomer.wait_for_answers(4)
        pool.apply(model_pool("red", ["llama", "qwen2"]))
        pool.wait_until("qwen3 is served no more", lambda: "qwen3" not in served(pool, RED))
        load.wait_for_answers(6)

    load.check()
    newcomer.check()
    assert {pod.uid for pod in pool.pods()} == before
    assert not any(pod.restarts for pod in pool.pods())


@pytest.mark.parametrize("component", ["engine", "scheduler"])
def test_every_client_gets_all_of_its_answer_when_a_pod_dies(pool: PodsOfPool, models: Path, component: str) -> None:
    there = pool.pods(component)
    with Load(pool.url, KEYS, models) as load:
        load.wait_for_answers(3)
        pool.kill(there[0])
        load.wait_for_answers(6)
        pool.wait_until_all_ready(component, len(there))
        load.wait_for_answers(6)

    load.check()


def test_a_gateway_pod_that_dies_disconnects_only_its_own_clients(pool: PodsOfPool, models: Path) -> None:
    there = pool.pods("gateway")
    with Load(pool.url, KEYS, models) as load:
        load.wait_for_answers(3)
        pool.kill(there[0])
        pool.wait_until_all_ready("gateway", len(there))
        failures = len(load.failures)
        load.wait_for_answers(9)

    assert len(load.failures) == failures  # nothing more once the other one has all clients
    assert failures <= 3 * len(KEYS)
    assert load.verdict().differences == ()


def test_serving_continues_without_the_operator_and_another_leads_when_one_dies(
    pool: PodsOfPool, models: Path, release: str
) -> None:
    with Load(pool.url, KEYS, models) as load:
        load.wait_for_answers(3)
        for name in kubectl(pool.kubeconfig, "-n", release, "get", "pods", "-l", OPERATOR, "-o", "name").split():
            kubectl(pool.kubeconfig, "-n", release, "delete", name, "--grace-period=0", "--force")
            load.wait_for_answers(3)
        a_model_comes_and_goes(pool)

    load.check()


def test_serving_continues_while_the_api_server_is_unavailable_and_the_operator_resumes_after(
    pool: PodsOfPool, models: Path
) -> None:
    before = {pod.uid: pod.restarts for pod in pool.pods()}
    with Load(pool.url, KEYS, models) as load:
        with api_server_away(default_layout()):
            time.sleep(30)  # the outage lasts so long, whatever happens
        load.wait_for_answers(3)
        a_model_comes_and_goes(pool)

    load.check()
    assert {pod.uid: pod.restarts for pod in pool.pods()} == before
    pool.wait_until_ready()


def test_requests_are_served_while_redis_is_unavailable(pool: PodsOfPool, models: Path, release: str) -> None:
    in_system = (pool.kubeconfig, "-n", release)
    with Load(pool.url, KEYS, models) as load:
        load.wait_for_answers(3)
        try:
            kubectl(*in_system, "scale", "deployment", "aegaeon-redis", "--replicas=0")
            kubectl(
                *in_system,
                "wait",
                "--for=delete",
                "pod",
                "-l",
                "app.kubernetes.io/name=aegaeon-redis",
                "--timeout=240s",
            )
            load.wait_for_answers(9)
        finally:
            kubectl(*in_system, "scale", "deployment", "aegaeon-redis", "--replicas=1")
            kubectl(*in_system, "rollout", "status", "deployment/aegaeon-redis", "--timeout=240s")
        pool.wait_until("a gateway has it again", lambda: "Redis is back" in gateway_logs(pool))
        load.wait_for_answers(3)

    load.check()


def test_a_drained_node_hands_its_engines_over(pool: PodsOfPool, models: Path) -> None:
    node = pool.pods("engine")[0].node
    with Load(pool.url, KEYS, models) as load:
        load.wait_for_answers(3)
        try:
            drain = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
            kubectl(pool.kubeconfig, *drain)
            load.wait_for_answers(6)
        finally:
            kubectl(pool.kubeconfig, "uncordon", node)
        pool.wait_until_all_ready("engine", 2)

    load.check()


def gateway_logs(pool: PodsOfPool) -> str:
    return pool.kubectl("logs", "--selector=app.kubernetes.io/component=gateway", "--tail=-1")


def a_model_comes_and_goes(pool: PodsOfPool) -> None:
    """What only an operator that works can bring about."""
    pool.apply(model_pool("red", ["llama", "qwen2", "qwen3"]))
    pool.wait_until("qwen3 is served", lambda: "qwen3" in served(pool, RED))
    pool.apply(model_pool("red", ["llama", "qwen2"]))
    pool.wait_until("qwen3 is served no more", lambda: "qwen3" not in served(pool, RED))


def served(pool: PodsOfPool, key: str) -> set[str]:
    """What a tenant is offered."""
    with clients.client(pool.url, key, max_retries=2) as client:
        return {model.id for model in client.models.list()}


def ask_all_at_once(pool: PodsOfPool, key: str, model: str) -> None:
    """More than the quota, if each gateway counted by itself, too, and more than may wait for it."""
    with ThreadPoolExecutor(8 * QUOTA) as people:
        list(people.map(lambda _: ask(pool, key, model, max_tokens=1), range(8 * QUOTA)))


def ask(pool: PodsOfPool, key: str, model: str, max_tokens: int = 16) -> str:
    """One whole answer."""
    with clients.client(pool.url, key) as client:
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hello"}], max_completion_tokens=max_tokens
        )
    return answer.choices[0].message.content or ""
