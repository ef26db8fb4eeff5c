"""The service with the real core when things break: whatever happens, the sequence goes on or gets an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aegaeon_proto.v1 import engine_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.core.config import SchedulerConfig
from aegaeon_scheduler.core.scheduler import Scheduler

SEQ = model_pb2.SeqId(request="r1")
MEMORY = engine_pb2.Memory(slabs_free=60, host_slabs_free=64)
FOOTPRINT = model_pb2.Footprint(
    weight_bytes=1 << 20, weight_slabs=1, kv_shape="s", kv_block_bytes=4096, kv_block_tokens=16, max_model_len=256
)
CACHED = model_pb2.ModelState(model="tiny-a", phase=model_pb2.MODEL_PHASE_CACHED, footprint=FOOTPRINT)


@pytest.fixture
def brain() -> Scheduler:
    """The real one."""
    return Scheduler(SchedulerConfig())


async def until(sidecar: Any, kind: str) -> engine_pb2.Command:
    """Do what the scheduler says up to the first command of this kind: loads, copies and earlier turns succeed."""
    while True:
        command = await sidecar.next()
        body = command.WhichOneof("body")
        if body == kind:
            return command
        if body in ("load", "swap_in", "adopt", "unload"):
            await sidecar.report(done=engine_pb2.Done(id=command.id, seconds=0.01, memory=MEMORY))


async def generate(sidecar: Any, turn: engine_pb2.Command, tokens: int, epoch: int, end: bool = False) -> None:
    """The turn's sequence has this many output tokens."""
    progress = engine_pb2.SeqProgress(seq=SEQ, epoch=epoch, output_tokens=tokens, kv_tokens=2 + tokens)
    if end:
        progress.finish = model_pb2.FINISH_REASON_LENGTH
    step = engine_pb2.StepDone(
        turn=turn.id, progress=[progress], steps=1, decode_s=0.01, batch=1, context_tokens=5, memory=MEMORY, end=True
    )
    await sidecar.report(step_done=step)


async def test_the_loss_of_an_engine_is_reported_and_its_successor_resumes_from_the_clients_prefix(
    serve: Any, brain: Any
) -> None:
    async with serve(brain) as stack:
        first = await stack.sidecar(models=[CACHED])
        gateway = await stack.gateway()
        await gateway.submit()
        await generate(first, await until(first, "turn"), tokens=1, epoch=1)
        first.call.cancel()
        lost = await gateway.next("lost")
        assert (lost.seq, lost.epoch) == (SEQ, 1)
        second = await stack.sidecar(incarnation="two", models=[CACHED])
        await gateway.submit(choices=[gateway_pb2.Choice(epoch=2, prefix=[40])])
        opened = (await until(second, "open")).open
        assert (opened.epoch, list(opened.prefix)) == (2, [40])
        turn = await until(second, "turn")
        assert [(part.seq, part.tokens) for part in turn.turn.prefill] == [(SEQ, 4)]
        await generate(second, turn, tokens=2, epoch=2, end=True)
        async with asyncio.timeout(10):
            async for status in stack.status(interval_s=0.05):
                if not status.sequences:
                    break
        assert len(stack.service.driver.sequences) == 0
        brain.check()


async def test_an_engine_that_reattaches_with_a_sequence_resumes_without_a_new_prefill(serve: Any, brain: Any) -> None:
    async with serve(brain, reattach_s=10) as stack:
        first = await stack.sidecar(models=[CACHED])
        gateway = await stack.gateway()
        await gateway.submit()
        await generate(first, await until(first, "turn"), tokens=2, epoch=1)
        first.call.cancel()
        held = engine_pb2.HeldSequence(
            seq=SEQ,
            epoch=1,
            model="tiny-a",
            prompt_tokens=3,
            output_tokens=2,
            kv_tokens=4,
            place=engine_pb2.KV_PLACE_DEVICE,
        )
        again = await stack.sidecar(models=[CACHED], held=[held], resident=["tiny-a"])
        assert (await gateway.next("lost")).epoch == 1
        await gateway.submit(choices=[gateway_pb2.Choice(epoch=2, prefix=[40])])
        assert (await until(again, "open")).open.epoch == 2
        turn = (await until(again, "turn")).turn
        assert (list(turn.decode), list(turn.prefill)) == ([SEQ], [])
        brain.check()


async def test_a_gateway_that_never_reconnects_leaves_nothing(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar = await stack.sidecar(models=[CACHED])
        gateway = await stack.gateway()
        await gateway.submit()
        await until(sidecar, "turn")
        gateway.call.cancel()
        assert (await until(sidecar, "close")).close.seq == SEQ
        (status,) = [picture async for picture in stack.status()]
        assert not status.sequences
        brain.check()


async def test_a_model_that_failed_everywhere_is_refused_with_its_reason(serve: Any, brain: Any) -> None:
    failed = model_pb2.ModelState(model="tiny-a", phase=model_pb2.MODEL_PHASE_FAILED, reason="a shard is truncated")
    async with serve(brain) as stack:
        await stack.sidecar(models=[failed])
        gateway = await stack.gateway()
        await gateway.submit()
        rejected = await gateway.next("rejected")
        assert rejected.code == gateway_pb2.REJECT_CODE_MODEL_FAILED
        assert "a shard is truncated" in rejected.reason


async def test_a_model_is_unsupported_when_every_engine_says_so(serve: Any, brain: Any) -> None:
    async def until(gateway: Any, *, unsupported: bool) -> None:
        while (await gateway.next("catalog")).models[0].unsupported != unsupported:
            pass

    failed = model_pb2.ModelState(model="tiny-a", phase=model_pb2.MODEL_PHASE_FAILED, unsupported=True)
    damaged = model_pb2.ModelState(model="tiny-a", phase=model_pb2.MODEL_PHASE_FAILED, reason="a shard is truncated")
    async with serve(brain) as stack, asyncio.timeout(60):
        gateway = await stack.gateway()
        await stack.sidecar("decode-0", models=[failed])
        await until(gateway, unsupported=True)
        other = await stack.sidecar("decode-1", models=[damaged])
        await until(gateway, unsupported=False)
        await other.report(model=failed)
        await until(gateway, unsupported=True)
