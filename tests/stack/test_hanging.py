"""A device that hangs, in an engine that sends its heartbeats: what the operator makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FATAL_TOKEN
from stack.pods import Pods, running
from stack.traffic import PROMPTS, stream

from aegaeon_operator.kube.scheduler import facts
from aegaeon_operator.reconcile.cluster.facts import SchedulerFacts
from aegaeon_operator.reconcile.cluster.progress import ProgressMonitor

MODEL = "m"
SERVING_S, BAR_S = 5.0, 10.0


async def look_until(pods: Pods, answers: ProgressMonitor, true: Callable[[SchedulerFacts], bool]) -> SchedulerFacts:
    """Looks as the operator's at a pool that serves."""
    while True:
        seen = answers.of(facts(await pods.status(), 1 << 20), time.monotonic())
        if true(seen):
            return seen
        await asyncio.sleep(min(SERVING_S, answers.again_in))


def hung_since(log: str) -> float:
    """Return the time at which the engine's step began; on a busy machine that is well after the request was sent."""
    return float(log.partition("hangs since ")[2].split()[0])


@pytest.mark.timeout(180)
async def test_a_step_that_hangs_is_reported_within_ten_seconds_though_everything_is_attached(nan_model: Path) -> None:
    async with running({MODEL: nan_model}, engines=1, engine="stack.hanging_engine") as (pods, client):
        await stream(client, MODEL, PROMPTS[0])
        answers, since = ProgressMonitor(), time.time()
        served = await look_until(pods, answers, lambda _: True)
        assert served.gateways is not None
        assert len(served.gateways) == 1
        assert since - served.answered_at < BAR_S
        hung = asyncio.create_task(client.completions.create(model=MODEL, prompt=[5, FATAL_TOKEN], max_tokens=4))
        sent = time.time()
        seen = await look_until(pods, answers, lambda state: state.stopped)
        since_request_s = time.time() - sent
        took_s = time.time() - hung_since(pods.log("engine-0"))
        print(f"a device that hangs: known after {took_s:.1f} s")  # noqa: T201  # for the record
        hung.cancel()
        assert took_s <= BAR_S
        assert since_request_s <= BAR_S + SERVING_S
        assert [(engine.name, engine.attached) for engine in seen.engines] == [("engine-0", True)]
        assert (seen.stuck, seen.models[MODEL].unanswered) == (("engine-0",), True)
