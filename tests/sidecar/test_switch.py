"""A switch on the real engine: what runs side by side, shown by the order of events while one lane is held up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import pytest
from sidecar.programs import assert_empty
from sidecar.rig import Rig, scrub, seq
from sidecar.test_rules import PROMPT, Sidecar, serving

from aegaeon_native import EventTable, NativeError
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.domain.program import AnyCommand, Lane

A, B = "m", "m1"


@pytest.fixture
async def sidecar(scheduler: Rig) -> AsyncIterator[Sidecar]:
    """A is resident with its batch; the batch of B, which has another KV shape, is on the host."""
    async with serving(scheduler, scheduler.models["llama"], scheduler.models["qwen3"]) as made:
        await prefill(made, B)
        for swap in move(made, pb.SwapOut, B):
            await made.link.done(swap)
        await made.link.done(made.link.send(pb.Unload(model=B)))
        scrub(made.engine)
        await prefill(made, A)
        yield made


async def prefill(sidecar: Sidecar, model: str) -> None:
    link = sidecar.link
    await link.done(link.send(pb.Load(model=model, slabs=32)))
    for name in batch(model):
        link.send(sidecar.scheduler.open(name, model, PROMPT, max_tokens=60))
    parts = [pb.PrefillPart(seq=seq(name), tokens=99) for name in batch(model)]
    await link.done(link.send(pb.Turn(model=model, prefill=parts, slabs=8)))


def batch(model: str) -> list[str]:
    return [f"{model}-0", f"{model}-1"]


def move(sidecar: Sidecar, kind: type, model: str) -> list[int]:
    slabs = {} if kind is pb.SwapOut else {"slabs": 4}
    return [sidecar.link.send(kind(seq=seq(name), epoch=1, **slabs)) for name in batch(model)]


def load(sidecar: Sidecar) -> int:
    unload = sidecar.link.send(pb.Unload(model=A))
    return sidecar.link.send(pb.Load(model=B, slabs=32), after=[unload])


def decode(sidecar: Sidecar, steps: int, after: int) -> int:
    turn = pb.Turn(model=B, decode=[seq(name) for name in batch(B)], steps=steps, slabs=8)
    return sidecar.link.send(turn, after=[after])


@contextmanager
def held_up(sidecar: Sidecar, lane: Lane) -> Iterator[None]:
    """What is queued on this lane's copier waits for the end of the block, as behind a copy that takes long."""
    gate = EventTable.private(1).event()
    sidecar.engine._copiers[lane]._lanes[0].wait(gate)
    try:
        yield
    finally:
        gate.set()


async def test_kv_is_swapped_out_and_in_while_the_weights_load(sidecar: Sidecar) -> None:
    link = sidecar.link
    with held_up(sidecar, Lane.WEIGHTS):
        coming = load(sidecar)
        moves = move(sidecar, pb.SwapOut, A) + move(sidecar, pb.SwapIn, B)
        turn = decode(sidecar, 3, after=coming)
        for copy in moves:
            await link.done(copy)
        assert coming not in link.outcomes
        assert turn not in link.steps
    await link.done(turn)
    assert link.order.index(coming) > max(link.order.index(copy) for copy in moves)
    for name in batch(B):
        assert len(await sidecar.scheduler.received_tokens(name, 4)) == 4


async def test_the_next_batch_decodes_while_the_former_ones_kv_is_still_swapped_out(sidecar: Sidecar) -> None:
    link = sidecar.link
    with held_up(sidecar, Lane.KV_OUT):
        out = move(sidecar, pb.SwapOut, A)
        coming = load(sidecar)
        into = move(sidecar, pb.SwapIn, B)
        await link.done(decode(sidecar, 3, after=coming))
        for copy in into:
            await link.done(copy)
        assert not set(out) & link.outcomes.keys()
        sidecar.engine.check()
    for copy in out:
        await link.done(copy)
    sidecar.engine.check()


async def test_the_batch_starts_with_the_first_sequence_swapped_in_and_the_others_join(sidecar: Sidecar) -> None:
    link, scheduler = sidecar.link, sidecar.scheduler
    first, second = batch(B)
    coming = load(sidecar)
    await link.done(link.send(pb.SwapIn(seq=seq(first), epoch=1, slabs=4)))
    with held_up(sidecar, Lane.KV_IN):
        late = link.send(pb.SwapIn(seq=seq(second), epoch=1, slabs=4))
        turn = decode(sidecar, 200, after=coming)
        await scheduler.received_tokens(first, 3)
        assert len(scheduler.output(second)) == 1
        assert late not in link.outcomes
    await link.done(turn)
    assert await scheduler.received_tokens(first, 60) == await scheduler.received_tokens(second, 60)


async def test_a_turn_whose_swap_ins_are_all_late_waits_for_the_first_and_reports_the_stall(sidecar: Sidecar) -> None:
    link = sidecar.link
    await link.done(load(sidecar))
    with held_up(sidecar, Lane.KV_IN):
        into = move(sidecar, pb.SwapIn, B)
        turn = link.send(pb.Turn(model=B, decode=[seq(name) for name in batch(B)], steps=2, slabs=8))
        await link.until(lambda: link.heartbeats > 1)
        assert turn not in link.steps
    await link.done(turn)
    assert not any(copy not in link.outcomes for copy in into[:1])
    assert sum(step.wait_s for step in link.steps[turn]) > 0


async def test_tokens_say_how_long_they_waited_for_weights_and_for_turns(sidecar: Sidecar) -> None:
    link, began = sidecar.link, time.monotonic()
    link.send(sidecar.scheduler.open("fresh", B, PROMPT, max_tokens=60))
    with held_up(sidecar, Lane.WEIGHTS):
        coming = load(sidecar)
        first = pb.Turn(model=B, prefill=[pb.PrefillPart(seq=seq("fresh"), tokens=99)], steps=2, decode=[seq("fresh")])
        first.slabs = 8
        turn = link.send(first, after=[coming])
        await asyncio.sleep(0.15)
    await link.done(turn)
    await asyncio.sleep(0.1)
    again = pb.Turn(model=B, decode=[seq("fresh")], steps=2, slabs=8)
    await link.done(link.send(again))
    await sidecar.scheduler.received_tokens("fresh", 5)
    tokens = [sidecar.scheduler.tokens["fresh", 0][index] for index in range(5)]
    waited, took = tokens[0].load_s, time.monotonic() - began
    assert 0.1 < waited < took
    assert [token.load_s for token in tokens[1:]] == [0.0] * 4
    assert 0.05 < tokens[3].stall_s < took - waited
    assert [token.stall_s for token in tokens if token is not tokens[3]] == [0.0] * 4


async def test_a_load_is_whole_although_another_scheduler_cancelled_one_of_the_same_id(sidecar: Sidecar) -> None:
    link = sidecar.link
    await link.done(load(sidecar))
    whole = weights(sidecar)
    await link.done(link.send(pb.Unload(model=B)))
    scrub(sidecar.engine)
    with held_up(sidecar, Lane.WEIGHTS):
        coming = link.send(pb.Load(model=B, slabs=32))
        await until(sidecar, coming, lambda item: item.running)
        link.send(pb.CancelCommand(id=coming))
        await until(sidecar, coming, lambda item: item.cancelled)
    assert (await link.refused(coming)).kind == pb.FAILURE_KIND_CANCELLED
    attachments = sidecar.scheduler.attachments
    await sidecar.scheduler.vanish()
    await sidecar.scheduler.serve()
    link = await sidecar.scheduler.link("a", attachments + 1)
    link.last_id = coming - 1
    await link.done(link.send(pb.Load(model=B, slabs=32)))
    assert weights(sidecar) == whole


def weights(sidecar: Sidecar) -> bytes:
    model = sidecar.engine.state.table.models[B]
    assert model.range is not None
    assert model.layout is not None
    return bytes(model.range.view(0, model.layout.weight_bytes))


async def until(sidecar: Sidecar, command: int, holds: Callable[[AnyCommand], bool]) -> None:
    """Looks at each heartbeat."""

    def now() -> bool:
        item = sidecar.engine.state.program.get(command)
        return item is not None and holds(item)

    await sidecar.link.until(now)


@pytest.mark.parametrize(("kind", "lane", "model"), [(pb.SwapOut, Lane.KV_OUT, A), (pb.SwapIn, Lane.KV_IN, B)])
async def test_a_copy_that_fails_leaves_its_sequence_where_it_was_and_may_be_made_again(
    sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch, kind: type, lane: Lane, model: str
) -> None:
    """Also its memory: a sequence that stayed in motion would keep the blocks of both tiers for ever."""
    link, copier = sidecar.link, sidecar.engine._copiers[lane]
    errors, finish = [NativeError("cuMemcpyAsync: invalid argument (CUDA error 1)")], copier.finish

    def fails_once() -> None:
        finish()
        if errors:
            raise errors.pop()

    monkeypatch.setattr(copier, "finish", fails_once)
    first, _ = move(sidecar, kind, model)
    assert "cuMemcpyAsync" in (await link.refused(first)).reason
    again, _ = move(sidecar, kind, model)
    assert (await link.done(again)).done.bytes
    for name in (*batch(A), *batch(B)):
        link.send(pb.Close(seq=seq(name), epoch=1))
    await link.done(link.send(pb.Unload(model=A)))
    assert_empty(sidecar.engine)
