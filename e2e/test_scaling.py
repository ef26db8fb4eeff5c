"""Engines come and go under load: by hand, by the autoscaler, to none and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.load import Load
from e2e.manifests import KEYS
from e2e.pool import PodsOfPool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]


def test_kubectl_scale_adds_and_removes_engines(pool: PodsOfPool, models: Path) -> None:
    with Load(pool.url, KEYS, models) as load:
        pool.kubectl("scale", "gpupool", pool.name, "--replicas=3")
        pool.wait_until_all_ready("engine", 3)
        load.wait_for_answers(6)
        pool.kubectl("scale", "gpupool", pool.name, "--replicas=2")
        pool.wait_until_all_ready("engine", 2)
        load.wait_for_answers(3)

    load.check()


@pytest.fixture
def scaled(pool: PodsOfPool) -> Iterator[PodsOfPool]:
    """By the autoscaler, between one engine and three; up soon, because tests do not wait for ten seconds."""
    pool.patch({"engines": {"min": 1, "max": 3}, "autoscaling": {"queueWait": "300ms", "idle": "1h"}})
    yield pool
    pool.patch({"engines": {"min": None, "max": None}, "autoscaling": None})
    pool.wait_until_all_ready("engine", 2)


def test_engines_are_added_while_requests_wait_and_removed_when_few_are_left(scaled: PodsOfPool, models: Path) -> None:
    with Load(scaled.url, KEYS, models, people=12) as crowd:
        scaled.wait_until_all_ready("engine", 3, 150)
        crowd.wait_for_answers(6)
    scaled.patch({"autoscaling": {"idle": "4s"}})
    with Load(scaled.url, {"llama": KEYS["llama"]}, models, people=1) as few:
        scaled.wait_until("one engine is left", lambda: len(scaled.pods("engine")) == 1, 90)
        few.wait_for_answers(3)

    crowd.check()
    few.check()


@pytest.fixture
def from_zero(pool: PodsOfPool) -> Iterator[PodsOfPool]:
    """No engine without requests; the last one is removed soon, because tests do not wait for minutes."""
    pool.patch({"engines": {"min": 0, "max": 2}, "autoscaling": {"idle": "5s"}})
    pool.wait_until("no engine is left", lambda: not pool.pods("engine"), 120)
    yield pool
    pool.patch({"engines": {"min": None, "max": None, "replicas": 2}, "autoscaling": None})
    pool.wait_until_all_ready("engine", 2)


def test_a_request_to_a_pool_at_zero_starts_an_engine_is_answered_and_the_pool_returns_to_zero(
    from_zero: PodsOfPool, models: Path
) -> None:
    from_zero.wait_until_ready()
    for _ in range(2):
        with Load(from_zero.url, KEYS, models, people=1) as load:
            load.wait_for_answers(3, 120)
            # An engine answers as soon as it is attached; kubelet's probe comes after.
            from_zero.wait_until("an engine is ready", lambda: any(pod.ready for pod in from_zero.pods("engine")), 30)
        load.check()
        print(f"first answers after {cold_start_s(load):.2f} s")  # the figures of RESULTS.md
        from_zero.wait_until("no engine is left", lambda: not from_zero.pods("engine"), 120)
    from_zero.wait_until_ready()


def test_a_pool_at_zero_whose_scheduler_is_killed_still_answers_the_next_request(
    from_zero: PodsOfPool, models: Path
) -> None:
    with Load(from_zero.url, {"llama": KEYS["llama"]}, models, people=1) as load:
        from_zero.kill(from_zero.pods("scheduler")[0])
        load.wait_for_answers(2, 150)
    load.check()


def cold_start_s(load: Load) -> float:
    """Seconds to the first token of the request that came first."""
    return min(load.exchanges, key=lambda one: one.sent).times[0]
