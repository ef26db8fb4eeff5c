"""Engines start on cold nodes and leave them under load while processes are stopped: every answer is right."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from stack.pods import KEY, Pods, running

from aegaeon_cli.demo.check import check
from aegaeon_cli.demo.traffic import Chat, Traffic

# Two of four models on the device, two in the host cache; KV of a few requests, so that it moves all the time.
MEMORY = {"device_bytes": 1536 << 10, "slab_bytes": 64 << 10, "host_kv_bytes": 1 << 20, "host_cache_bytes": 1 << 20}
# Of several blocks each; the first ones are shared, and found again by other engines of the node.
HEADS = ("Tokens are scheduled one by one, and no reader notices", "The quick brown fox jumps over the lazy dog, then")
TAILS = (
    "?",
    " a difference?",
    " what?",
    " the batch that forward(batch) returns?",
    " Größe, Übung, Ärger?",
)
QUESTIONS = [f"{head}{tail}" for head in HEADS for tail in TAILS]
PEOPLE = 3  # at each model
STILL_S = (0.02, 2.5)  # a starved process; after two seconds an engine is taken for dead
ANSWERS = 100


class Crowd:
    """People who ask one question after the other until they leave; `plenty` is set with ANSWERS answers."""

    def __init__(self, pods: Pods, models: dict[str, Path]) -> None:
        self._models = models
        self._traffic = {model: Traffic(pods.url, KEY) for model in models}
        self._enough = asyncio.Event()
        self._answered = 0
        self.plenty = asyncio.Event()

    async def run(self, seed: int) -> None:
        async with asyncio.TaskGroup() as group:
            for model in self._models:
                for person in range(PEOPLE):
                    group.create_task(self._hold(model, random.Random(f"{seed} {model} {person}")))
        for traffic in self._traffic.values():
            await traffic.close()

    def leave(self) -> None:
        self._enough.set()

    def verdict(self) -> tuple[int, tuple[str, ...]]:
        """Answers, and what differs from transformers in them."""
        well = [one for traffic in self._traffic.values() for one in traffic.exchanges if not one.error]
        return len(well), check(well, self._models).differences

    async def _hold(self, model: str, chance: random.Random) -> None:
        while not self._enough.is_set():
            chat = Chat(model, chance.choice(QUESTIONS), max_tokens=chance.choice((1, 8, 40, 90)))
            if (await self._traffic[model].ask(chat)).error:
                await asyncio.sleep(0.2)  # a person who is refused does not ask again at once
                continue
            self._answered += 1
            if self._answered >= ANSWERS:
                self.plenty.set()


async def stand_still(pods: Pods, ready: set[str], chance: random.Random) -> None:
    """One ready process after the other gets no processor for a while, as on a machine that is overloaded."""
    while True:
        await asyncio.sleep(chance.uniform(0.0, 0.3))  # the moment is the point: any
        process = pods.processes.get(chance.choice(sorted(ready)))
        if process is None or process.returncode is not None:
            continue
        with suppress(ProcessLookupError):  # it ended just now
            os.kill(process.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(chance.uniform(*STILL_S))
            finally:
                os.kill(process.pid, signal.SIGCONT)


async def come_and_go(pods: Pods, ready: set[str], crowd: Crowd) -> None:
    """A second engine on the node that is being filled, one on a cold node; each is drained and restarted once."""
    await asyncio.gather(come(pods, ready, "engine-1", "n"), come(pods, ready, "engine-2", "m"))
    for name, node in (("engine-0", "n"), ("engine-2", "m"), ("engine-1", "n")):
        ready.discard(name)
        await pods.end(name, 120)
        await come(pods, ready, name, node)
    await crowd.plenty.wait()


async def come(pods: Pods, ready: set[str], name: str, node: str) -> None:
    await pods.start_engine(name, node=node)
    ready.add(name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
async def test_answers_are_those_of_transformers_on_cold_nodes_and_starved_processes(
    four_models: dict[str, Path], seed: int
) -> None:
    ready = {"scheduler", "gateway", "engine-0"}
    async with running(four_models, engines=1, memory=MEMORY) as (pods, _):
        crowd = Crowd(pods, four_models)
        people = asyncio.create_task(crowd.run(seed))
        starving = asyncio.create_task(stand_still(pods, ready, random.Random(seed)))
        try:
            await come_and_go(pods, ready, crowd)
        finally:
            starving.cancel()
            crowd.leave()
            await asyncio.gather(people, starving, return_exceptions=True)
    answers, differences = crowd.verdict()
    assert differences == ()
    assert answers >= ANSWERS
