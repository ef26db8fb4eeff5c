"""Engines come and go under load: by hand, by the autoscaler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.load import Load
from e2e.manifests import KEYS
from e2e.pool import PodsOfPool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]


def test_engines_come_and_go_by_kubectl_scale(pool: PodsOfPool, models: Path) -> None:
    with Load(pool.url, KEYS, models) as load:
        pool.kubectl("scale", "gpupool", pool.name, "--replicas=3")
        pool.wait_until_all_ready("engine", 3)
        load.wait_for_answers(6)
        pool.kubectl("scale", "gpupool", pool.name, "--replicas=2")
        pool.wait_until_all_ready("engine", 2)
        load.wait_for_answers(3)

    assert load.failures == []
    assert load.verdict().differences == ()


@pytest.fixture
def scaled(pool: PodsOfPool) -> Iterator[PodsOfPool]:
    """By the autoscaler, between one engine and three; up soon, because tests do not wait for ten seconds."""
    pool.patch({"engines": {"min": 1, "max": 3}, "autoscaling": {"queueWait": "300ms", "idle": "1h"}})
    yield pool
    pool.patch({"engines": {"min": None, "max": None}, "autoscaling": None})
    pool.wait_until_all_ready("engine", 2)


def test_engines_are_added_while_requests_wait_and_taken_away_when_few_are_left(
    scaled: PodsOfPool, models: Path
) -> None:
    with Load(scaled.url, KEYS, models, people=12) as crowd:
        scaled.wait_until_all_ready("engine", 3, 150)
        crowd.wait_for_answers(6)
    scaled.patch({"autoscaling": {"idle": "4s"}})
    with Load(scaled.url, {"llama": KEYS["llama"]}, models, people=1) as few:
        scaled.wait_until("one engine is left", lambda: len(scaled.pods("engine")) == 1, 90)
        few.wait_for_answers(3)

    assert crowd.failures == few.failures == []
    assert crowd.verdict().differences == few.verdict().differences == ()
