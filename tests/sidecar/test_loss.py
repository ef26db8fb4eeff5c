"""Streams break and schedulers and gateways reconnect: no token is lost, or sent twice with different content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sidecar.rig import Link, Rig, config, inside, ready, seq

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.engine.engine import Engine
from aegaeon_sidecar.rpc.backoff import MOST_S

PROMPT = [5, 17, 23, 42, 8, 99, 140, 7, 61, 12, 33]
LENGTH = 60
SHORT_LEASE_S = 0.3
LONG_LEASE_S = 60.0


@pytest.fixture
async def engine(scheduler: Rig, request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """A sidecar with one model resident, and `whole`, a sequence that ran alone from beginning to end."""
    async with inside(config(scheduler.folder, lease_s=getattr(request, "param", LONG_LEASE_S))) as made:
        link = await ready(scheduler, scheduler.models["mistral"])
        await run(scheduler, link, "whole", steps=LENGTH)
        assert len(await scheduler.received_tokens("whole", LENGTH)) == LENGTH
        yield made


async def run(scheduler: Rig, link: Link, name: str, steps: int, sampling: mpb.Sampling | None = None) -> None:
    """Open, prefill and decode so many steps."""
    link.send(scheduler.open(name, "m", PROMPT, max_tokens=LENGTH, **({"sampling": sampling} if sampling else {})))
    parts = [pb.PrefillPart(seq=seq(name), tokens=99)]
    await link.done(link.send(pb.Turn(model="m", prefill=parts, decode=[seq(name)], steps=steps, slabs=16)))


async def go_on(link: Link, name: str, prefill: int = 0) -> None:
    """A turn long enough to end the sequence."""
    parts = [pb.PrefillPart(seq=seq(name), tokens=prefill)] if prefill else []
    await link.done(link.send(pb.Turn(model="m", prefill=parts, decode=[seq(name)], steps=LENGTH, slabs=16)))


def parked(engine: Engine) -> bool:
    """Once all KV is on the host."""
    state = engine.state
    with state.monitor.changed:
        return state.monitor.changed.wait_for(
            lambda: all(s.host_blocks.size and not s.blocks.size for s in state.kv.sequences), 60
        )


async def back(scheduler: Rig, attachments: int = 2) -> Link:
    await scheduler.vanish()
    await scheduler.serve()
    return await scheduler.link("a", attachments)


async def test_a_new_scheduler_finds_the_sequence_and_the_client_gets_the_rest_under_its_new_epoch(
    scheduler: Rig, engine: Engine
) -> None:
    await run(scheduler, scheduler.links["a"], "r", steps=20)
    tokens = await scheduler.received_tokens("r", 21)
    link = await back(scheduler)
    (held,) = link.hello.held
    assert (held.seq.request, held.epoch, held.output_tokens, held.kv_tokens) == ("r", 1, 21, len(PROMPT) + 20)
    assert list(link.hello.resident) == ["m"]
    scheduler.tokens["r", 0] = {}
    link.send(scheduler.open("r", "m", PROMPT, epoch=2, prefix=tokens[:9], max_tokens=LENGTH))
    await scheduler.until(lambda: sorted(scheduler.tokens["r", 0]) == list(range(9, 21)))
    await go_on(link, "r")
    assert await scheduler.received_tokens("r", LENGTH - 9) == scheduler.output("whole")[9:]
    assert {token.epoch for token in scheduler.tokens["r", 0].values()} == {2}


async def test_a_turn_continues_without_a_scheduler_and_its_tokens_arrive_later(scheduler: Rig, engine: Engine) -> None:
    link = scheduler.links["a"]
    link.send(scheduler.open("r", "m", PROMPT, max_tokens=LENGTH))
    parts = [pb.PrefillPart(seq=seq("r"), tokens=99)]
    link.send(pb.Turn(model="m", prefill=parts, decode=[seq("r")], steps=LENGTH, slabs=16))
    await scheduler.received_tokens("r", 2)
    link = await back(scheduler)
    if link.hello.held:  # the turn was cut at a token boundary when the new stream came
        await go_on(link, "r")
    assert await scheduler.received_tokens("r", LENGTH) == scheduler.output("whole")


@pytest.mark.parametrize("engine", [SHORT_LEASE_S], indirect=True)
async def test_after_the_lease_kv_is_swapped_out_and_kept(scheduler: Rig, engine: Engine) -> None:
    await run(scheduler, scheduler.links["a"], "r", steps=20)
    await scheduler.vanish()
    assert await asyncio.to_thread(parked, engine)
    await scheduler.serve()
    link = await scheduler.link("a", 2)
    (held,) = link.hello.held
    assert held.place == pb.KV_PLACE_HOST
    assert held.handle.kv_tokens == held.kv_tokens == len(PROMPT) + 20
    await link.done(link.send(pb.SwapIn(seq=seq("r"), epoch=1, slabs=16)))
    await go_on(link, "r")
    assert await scheduler.received_tokens("r", LENGTH) == scheduler.output("whole")


@pytest.mark.parametrize("engine", [SHORT_LEASE_S], indirect=True)
async def test_a_refused_sidecar_swaps_out_its_kv_and_retries_with_backoff(scheduler: Rig, engine: Engine) -> None:
    await run(scheduler, scheduler.links["a"], "r", steps=20)
    scheduler.refuses = True
    await scheduler.vanish()
    await scheduler.serve()
    assert await asyncio.to_thread(parked, engine)
    before = scheduler.refused
    await asyncio.sleep(3)  # how often it asks is what is tested
    assert 1 <= scheduler.refused - before <= 3 / (MOST_S / 2) + 4, "pauses had begun to grow long before"
    scheduler.refuses = False
    (held,) = (await scheduler.link("a", 2)).hello.held
    assert held.place == pb.KV_PLACE_HOST


@pytest.mark.parametrize("engine", [1.0], indirect=True)
async def test_kv_stays_where_hello_says_it_is_though_the_lease_ends_before_the_scheduler_sends_anything(
    scheduler: Rig, engine: Engine
) -> None:
    await run(scheduler, scheduler.links["a"], "r", steps=20)
    link = await back(scheduler)
    (held,) = link.hello.held
    await asyncio.sleep(1.5)  # the end of the lease
    if held.place == pb.KV_PLACE_HOST:  # on a machine that is busy with much else
        await link.done(link.send(pb.SwapIn(seq=seq("r"), epoch=1, slabs=16)))
    await go_on(link, "r")
    assert await scheduler.received_tokens("r", LENGTH) == scheduler.output("whole")


async def test_tokens_that_were_not_acknowledged_are_sent_again(scheduler: Rig, engine: Engine) -> None:
    scheduler.deaf = True
    await run(scheduler, scheduler.links["a"], "r", steps=LENGTH)
    await scheduler.received_tokens("r", LENGTH)
    scheduler.tokens["r", 0] = {}
    scheduler.deaf = False
    await back(scheduler)
    assert await scheduler.received_tokens("r", LENGTH) == scheduler.output("whole")


async def test_a_prefix_that_differs_from_the_held_kv_is_prefilled_again(scheduler: Rig, engine: Engine) -> None:
    link = scheduler.links["a"]
    await run(scheduler, link, "r", steps=20)
    await scheduler.received_tokens("r", 21)
    scheduler.tokens["r", 0] = {}
    prefix = [1, 2, 3]
    link.send(scheduler.open("r", "m", PROMPT, epoch=2, prefix=prefix, max_tokens=LENGTH))
    await go_on(link, "r", prefill=99)
    link.send(scheduler.open("s", "m", PROMPT, prefix=prefix, max_tokens=LENGTH))
    await go_on(link, "s", prefill=99)
    assert await scheduler.received_tokens("r", LENGTH - 3) == await scheduler.received_tokens("s", LENGTH - 3)
    engine.check()


async def test_logprobs_move_with_the_tokens_that_are_sent_again(scheduler: Rig, engine: Engine) -> None:
    link = scheduler.links["a"]
    await run(scheduler, link, "r", steps=9, sampling=mpb.Sampling(top_p=1, repetition_penalty=1, logprobs=2))
    await scheduler.received_tokens("r", 10)
    first = dict(scheduler.tokens["r", 0])
    scheduler.tokens["r", 0] = {}
    link.send(scheduler.open("r", "m", PROMPT, epoch=2, max_tokens=LENGTH))
    await scheduler.received_tokens("r", 10)
    for index, token in scheduler.tokens["r", 0].items():
        assert token.epoch == 2
        assert token.logprob == first[index].logprob
        assert len(token.top) == 2
        assert token.top == first[index].top
