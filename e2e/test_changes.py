"""Models of a pool that are changed under their names, well and badly, while clients stream: see test_pods.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aegaeon_cli.demo.check import check
from e2e.load import Load
from e2e.manifests import KEYS, RED, model_pool
from e2e.pool import PodsOfPool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]


@pytest.fixture(autouse=True)
def put_back(pool: PodsOfPool) -> Iterator[None]:
    """Tests of other files share the pool: its models are as they were, whatever became of the change."""
    yield
    pool.apply(model_pool("blue", ["mistral"], guest="green"), model_pool("red", ["llama", "qwen2"]))
    pool.wait_until("it is as it was", lambda: rolled_out(pool, "red") and rolled_out(pool, "blue"), 180)
    pool.wait_until_ready()


def changed(tenant: str, names: list[str], model: str, **fields: Any) -> dict[str, Any]:
    """A tenant's ModelPool, in which one model is another one."""
    made = model_pool(tenant, names, guest="green" if tenant == "blue" else "")
    for one in made["spec"]["models"]:
        if one["name"] == model:
            one.update(fields)
    return made


def condition(pool: PodsOfPool, kind: str, name: str, condition: str) -> dict[str, Any]:
    status = json.loads(pool.kubectl("get", kind, name, "-o", "json"))["status"]
    found: dict[str, Any] = next(one for one in status["conditions"] if one["type"] == condition)
    return found


def rolled_out(pool: PodsOfPool, name: str) -> bool:
    """Whether the operator has seen the newest spec and nothing of it is on its way."""
    found = json.loads(pool.kubectl("get", "modelpool", name, "-o", "json"))
    seen = found["status"].get("observedGeneration") == found["metadata"]["generation"]
    return bool(seen and condition(pool, "modelpool", name, "Progressing")["status"] == "False")


@pytest.mark.parametrize("scheduler", ["goes on", "dies"])
def test_a_model_is_changed_under_its_name_and_no_request_fails_or_is_answered_by_both(
    pool: PodsOfPool, models: Path, scheduler: str
) -> None:
    with Load(pool.url, {"llama": KEYS["llama"]}, models) as others, Load(pool.url, {"qwen2": RED}, models) as load:
        load.wait_for_answers(2)
        pool.apply(changed("red", ["llama", "qwen2"], "qwen2", source={"hostPath": "qwen3"}))
        if scheduler == "dies":
            pool.kill(pool.pods("scheduler")[0])
        load.wait_for_answers(4)
        pool.wait_until("the change is through", lambda: rolled_out(pool, "red"), 180)
        pool.wait_until_ready()
    with Load(pool.url, {"qwen2": RED}, models) as after:
        after.wait_for_answers(4)

    assert load.failures == others.failures == after.failures == []
    assert others.verdict().differences == ()
    assert check(after.exchanges, {"qwen2": models / "qwen3"}).differences == ()
    either = [check([one], {"qwen2": models / name}).differences == () for one in load.exchanges for name in _EITHER]
    assert all(any(pair) for pair in zip(either[::2], either[1::2], strict=True))


_EITHER = ("qwen2", "qwen3")


def test_a_change_that_cannot_be_served_is_reported_on_its_own_model_pool_and_blocks_no_other(
    pool: PodsOfPool, models: Path
) -> None:
    with Load(pool.url, KEYS, models) as load:
        load.wait_for_answers(2)
        pool.apply(changed("blue", ["mistral"], "mistral", source={"hostPath": "nowhere"}))
        pool.wait_until(
            "the change is refused", lambda: condition(pool, "modelpool", "blue", "Accepted")["status"] == "False", 120
        )
        pool.apply(model_pool("red", ["llama", "qwen2", "qwen3"]))
        pool.wait_until("another tenant's new model is served", lambda: rolled_out(pool, "red"), 120)
        with Load(pool.url, {"qwen3": RED}, models) as newcomer:
            newcomer.wait_for_answers(2)
        load.wait_for_answers(6)
        refused = condition(pool, "modelpool", "blue", "Accepted")
        whole = condition(pool, "gpupool", pool.name, "Accepted")
        pool.apply(model_pool("blue", ["mistral"], guest="green"), model_pool("red", ["llama", "qwen2"]))
        pool.wait_until_ready()

    load.check()
    newcomer.check()
    assert refused["reason"] == "ModelRefused"
    assert "mistral: the new version cannot be served, the old one stays in use: " in refused["message"]
    assert (whole["status"], whole["message"][-1]) == ("True", "1")


def test_a_setting_of_a_served_model_and_a_scheduler_that_is_deleted_cost_no_request(
    pool: PodsOfPool, models: Path
) -> None:
    with Load(pool.url, KEYS, models) as load:
        load.wait_for_answers(2)
        pool.apply(changed("red", ["llama", "qwen2"], "qwen2", maxModelLen=128))
        pool.kill(pool.pods("scheduler")[0])
        load.wait_for_answers(12, within_s=180)
        pool.wait_until("the change is through", lambda: rolled_out(pool, "red"), 180)
        pool.apply(model_pool("red", ["llama", "qwen2"]))
        pool.wait_until("it is as it was", lambda: rolled_out(pool, "red"), 180)

    load.check()
