"""Tokens to gateways: kept until acknowledged, sent again, and given up only with the last sequence."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from sidecar.rig import PATIENCE_S, Rig

from aegaeon_proto.engine.ids import SeqId
from aegaeon_proto.engine.tokens import Said, Token
from aegaeon_sidecar.rpc import sink
from aegaeon_sidecar.rpc.sink import Sinks


def token(index: int) -> Token:
    return Token(SeqId("r", 0), epoch=1, index=index, token=index + 100)


def sinks(alive: bool, keep_s: float = 0.2) -> Sinks:
    return Sinks("a", asyncio.get_running_loop(), lambda target: alive, keep_s)


async def test_tokens_pushed_from_a_thread_arrive_in_order_and_are_released(scheduler: Rig) -> None:
    made = sinks(alive=True)

    def push() -> None:
        for index in range(3000):
            made.push(scheduler.sink, [token(index)])

    await asyncio.to_thread(push)
    assert await scheduler.received_tokens("r", 3000) == list(range(100, 3100))
    await made.flush(5)
    assert made.pending == 0
    await made.close()


async def test_logprobs_of_many_prompts_are_several_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_BATCH_LARGE_BYTES", 1000)
    late = Rig(folder)
    late.deaf = True
    made = sinks(alive=True)
    prompt = (Said(token=7, logprob=-1.0, rank=1, top=((7, -1.0),)),) * 100
    for index in range(6):
        made.push(late.sink, [replace(token(index), prompt=prompt)])
    await late.serve()
    assert await late.received_tokens("r", 6) == list(range(100, 106))
    assert made.pending == 6, "batches that are not acknowledged"
    await made.close()
    await late.vanish()


async def test_a_gateway_that_connects_late_gets_everything(folder: Path) -> None:
    late = Rig(folder)
    made = sinks(alive=True)
    made.push(late.sink, [token(0), token(1)])
    await made.flush(0.4)  # longer than tokens without a sequence would be kept
    assert made.pending == 1
    await late.serve()
    assert await late.received_tokens("r", 2) == [100, 101]
    await made.flush(5)
    assert made.pending == 0
    await made.close()
    await late.vanish()


async def test_a_gateway_that_acknowledges_nothing_is_dialled_again(
    scheduler: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_SILENT_S", 0.2)
    scheduler.deaf = True
    made = sinks(alive=True)
    made.push(scheduler.sink, [token(0)])
    await scheduler.until(lambda: scheduler.received >= 3)
    assert made.pending == 1
    scheduler.deaf = False
    await made.flush(10)
    assert made.pending == 0
    received = scheduler.received
    await asyncio.sleep(0.5)
    assert scheduler.received == received, "one that has acknowledged all may be silent"
    await made.close()


async def test_undelivered_tokens_of_a_lost_gateway_are_dropped_with_its_last_sequence(folder: Path) -> None:
    made = sinks(alive=False)
    made.push(f"unix:{folder}/no-gateway.sock", [token(0)])
    await made.flush(10)
    assert made.pending == 0
    await made.close()


async def test_tokens_that_come_as_a_gateway_is_given_up_do_not_cut_it_off(folder: Path) -> None:
    """The compute lane may have looked its connection up just before."""
    gateway, asked = Rig(folder), asyncio.Event()

    def replies_to(target: str) -> bool:
        if not asked.is_set():
            asked.set()
            made.push(target, [token(1)])
        return False

    made = Sinks("a", asyncio.get_running_loop(), replies_to, keep_s=0.0)
    await gateway.serve()
    made.push(gateway.sink, [token(0)])
    assert await gateway.received_tokens("r", 1) == [100]
    await gateway.vanish()
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    again = Rig(folder)
    await again.serve()
    made.push(again.sink, [replace(token(0), seq=SeqId("later", 0))])
    assert await again.received_tokens("later", 1) == [100]
    await made.close()
    await again.vanish()


async def test_a_sequence_without_a_gateway_needs_no_sink(scheduler: Rig) -> None:
    made = sinks(alive=True)
    made.push("", [token(0)])
    assert made.pending == 0
    await made.close()
