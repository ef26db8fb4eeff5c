"""Steps launched before the tokens of the step before are known: what ends, leaves or fails meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sidecar.late import Late, LateBackend
from sidecar.rig import Link, Rig, config, inside, ready, seq

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.engine.engine import Engine
from aegaeon_sidecar.sampling import Chosen

PROMPT = [5, 17, 23, 42, 8, 99, 140, 7, 61, 12, 33]
SLABS = 24


class Gated(LateBackend):
    """A device that computes nothing after the first `free` steps until its gate is opened."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free
        self.gate, self.waiting = threading.Event(), threading.Event()

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        late = super().launch(model, inputs, after)
        assert isinstance(late, Late)
        compute = late.compute

        def held() -> list[Chosen]:
            self.free -= 1
            if self.free < 0:
                self.waiting.set()
                assert self.gate.wait(60)
            return compute()

        late.compute = held
        return late


class Lost:
    """A step whose results cannot be had."""

    def results(self) -> list[Chosen]:
        raise RuntimeError("the device is unwell")


class Failing(LateBackend):
    """The results of step number `fails` cannot be had; with `at_launch` it cannot be launched."""

    def __init__(self, fails: int, at_launch: bool) -> None:
        super().__init__()
        self.fails, self.at_launch, self.launches = fails, at_launch, 0

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        late = super().launch(model, inputs, after if isinstance(after, Late) else Late(list))
        self.launches += 1
        if self.launches == self.fails and self.at_launch:
            raise RuntimeError("the device is unwell")
        if self.launches == self.fails:
            return Lost()
        return late


@asynccontextmanager
async def resident(scheduler: Rig, backend: LateBackend) -> AsyncIterator[tuple[Engine, Link]]:
    async with inside(config(scheduler.folder), backend) as engine:
        yield engine, await ready(scheduler, scheduler.models["llama"])


def turn(link: Link, *names: str, steps: int, prefill: bool = True) -> int:
    parts = [pb.PrefillPart(seq=seq(name), tokens=99) for name in names] if prefill else []
    return link.send(pb.Turn(model="m", prefill=parts, decode=[seq(name) for name in names], steps=steps, slabs=SLABS))


def steps_of(link: Link, command: int) -> int:
    return sum(step.steps for step in link.steps[command])


async def all_back(engine: Engine, link: Link) -> None:
    """Nothing is left behind."""
    await link.done(link.send(pb.Unload(model="m")))
    engine.check()
    assert engine.state.kv.device.slabs_free == engine.state.kv.device.pool.total


async def test_a_turn_makes_exactly_its_steps_and_a_length_limit_wastes_none(scheduler: Rig) -> None:
    backend = LateBackend()
    async with resident(scheduler, backend) as (engine, link):
        link.send(scheduler.open("r", "m", PROMPT, max_tokens=9))
        first = turn(link, "r", steps=3)
        await link.done(first)
        assert steps_of(link, first) == 3
        assert len(await scheduler.received_tokens("r", 4)) == 4
        assert backend.ahead == 2
        second = turn(link, "r", steps=99, prefill=False)
        await link.done(second)
        assert steps_of(link, second) == 5
        assert len(await scheduler.received_tokens("r", 9)) == 9  # tokens have a stream of their own
        assert scheduler.tokens["r", 0][8].finish == mpb.FINISH_REASON_LENGTH
        await all_back(engine, link)


async def test_the_token_after_a_stop_id_is_dropped_and_others_of_its_step_are_kept(scheduler: Rig) -> None:
    backend = LateBackend()
    async with resident(scheduler, backend) as (engine, link):
        link.send(scheduler.open("free", "m", PROMPT, max_tokens=12))
        await link.done(turn(link, "free", steps=20))
        expected = await scheduler.received_tokens("free", 12)
        at = next(i for i in range(3, 12) if expected[i] not in expected[:i])
        link.send(scheduler.open("stopped", "m", PROMPT, max_tokens=12, stop_ids=[expected[at]]))
        link.send(scheduler.open("beside", "m", PROMPT, max_tokens=12))
        last = turn(link, "stopped", "beside", steps=20)
        await link.done(last)
        assert await scheduler.received_tokens("beside", 12) == expected
        assert await scheduler.received_tokens("stopped", at + 1) == expected[: at + 1]
        assert scheduler.tokens["stopped", 0][at].finish == mpb.FINISH_REASON_STOP
        link.send(scheduler.open("alone", "m", PROMPT, max_tokens=12, stop_ids=[expected[at]]))
        alone = turn(link, "alone", steps=20)
        await link.done(alone)
        assert await scheduler.received_tokens("alone", at + 1) == expected[: at + 1]
        assert steps_of(link, alone) == at + 1  # the prefill gives the first token; one step found out too late
        await all_back(engine, link)


async def test_penalties_and_logprobs_are_computed_synchronously(scheduler: Rig) -> None:
    backend = LateBackend()
    async with resident(scheduler, backend) as (_, link):
        for sampling in (
            mpb.Sampling(top_p=1, repetition_penalty=1.2),
            mpb.Sampling(top_p=1, repetition_penalty=1, logprobs=2),
        ):
            link.send(scheduler.open("r", "m", PROMPT, sampling=sampling))
            await link.done(turn(link, "r", steps=4))
            link.send(pb.Close(seq=seq("r"), epoch=1))
        assert backend.ahead == 0


async def test_a_sequence_with_penalties_that_joins_has_the_tokens_before_known(scheduler: Rig) -> None:
    """Its KV comes in while steps of another one, which is drawn, are launched ahead."""
    drawn = mpb.Sampling(temperature=0.9, top_p=1, repetition_penalty=1, seed=3)
    penalised = mpb.Sampling(temperature=0.9, top_p=1, repetition_penalty=1.2, seed=4)
    backend = Gated(free=1000)
    async with resident(scheduler, backend) as (_, link):
        expected = {}
        for name, sampling in (("r", drawn), ("p", penalised)):
            link.send(scheduler.open(f"{name}-alone", "m", PROMPT, max_tokens=16, sampling=sampling))
            await link.done(turn(link, f"{name}-alone", steps=16))
            expected[name] = await scheduler.received_tokens(f"{name}-alone", 16)
            link.send(scheduler.open(name, "m", PROMPT, max_tokens=16, sampling=sampling))
        await link.done(turn(link, "p", steps=1))
        await link.done(link.send(pb.SwapOut(seq=seq("p"), epoch=1)))
        await link.done(turn(link, "r", steps=1))
        backend.free = 2
        running = turn(link, "r", "p", steps=14, prefill=False)
        assert await asyncio.to_thread(backend.waiting.wait, 60)
        await link.done(link.send(pb.SwapIn(seq=seq("p"), epoch=1, slabs=SLABS)))
        backend.gate.set()
        await link.done(running)
        assert await scheduler.received_tokens("r", 16) == expected["r"]
        joined = await scheduler.received_tokens("p", 12)
        assert joined == expected["p"][: len(joined)]


async def test_a_closed_sequence_keeps_its_memory_until_its_in_flight_steps_complete(scheduler: Rig) -> None:
    backend = Gated(free=5)  # two chunks of prefill among them
    async with resident(scheduler, backend) as (engine, link):
        link.send(scheduler.open("r", "m", PROMPT))
        running = turn(link, "r", steps=50)
        await scheduler.received_tokens("r", 4)
        assert backend.waiting.wait(60)
        with engine.state.monitor.changed:
            held = next(iter(engine.state.kv.sequences))
        link.send(pb.Close(seq=seq("r"), epoch=1))
        unload = link.send(pb.Unload(model="m"))
        await link.until(lambda: link.heartbeats > 2)  # the lanes have had all the time to do wrong
        assert (held.busy, held.closed, held.blocks.size) == (2, True, 1)
        assert unload not in link.outcomes
        backend.gate.set()
        await link.done(running)
        await link.done(unload)
        assert len(await scheduler.received_tokens("r", 4)) == 4
        await all_back(engine, link)


async def test_a_swap_out_waits_for_in_flight_steps_and_copies_all_their_kv(scheduler: Rig) -> None:
    backend = Gated(free=5)
    async with resident(scheduler, backend) as (engine, link):
        link.send(scheduler.open("r", "m", PROMPT))
        running = turn(link, "r", steps=50)
        await scheduler.received_tokens("r", 4)
        assert backend.waiting.wait(60)
        out = link.send(pb.SwapOut(seq=seq("r"), epoch=1))
        await link.until(lambda: engine.state.kv.sequences.get(("r", 0)).queued_moves == 1)
        backend.gate.set()
        handle = (await link.done(out)).done.handle
        await link.done(running)
        assert len(handle.output) == 6
        assert handle.kv_tokens == len(PROMPT) + 5
        assert await scheduler.received_tokens("r", 6) == list(handle.output)


async def test_a_step_that_fails_once_is_retried_with_the_one_in_flight_behind_it(scheduler: Rig) -> None:
    async with resident(scheduler, LateBackend()) as (_, link):
        link.send(scheduler.open("whole", "m", PROMPT, max_tokens=12))
        await link.done(turn(link, "whole", steps=20))
        expected = await scheduler.received_tokens("whole", 12)
    for name, at_launch in (("heard", False), ("launched", True)):
        backend = Failing(6, at_launch)  # two chunks of prefill, and the fourth decode
        scheduler.links.clear()
        async with resident(scheduler, backend) as (engine, link):
            link.send(scheduler.open(name, "m", PROMPT, max_tokens=12))
            await link.done(turn(link, name, steps=20))
            assert await scheduler.received_tokens(name, 12) == expected
            await all_back(engine, link)
