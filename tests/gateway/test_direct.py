"""Events are written where their tokens arrive: what fails there ends one answer, and nothing is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from tests.gateway.conftest import HI, Pool

from aegaeon_gateway.answer.chat import ChatRenderer
from aegaeon_gateway.generation.output import Delta
from aegaeon_gateway.http.event_stream import StreamWriter
from aegaeon_gateway.rpc.sink import TokenSink
from aegaeon_proto.frame_server import Connection
from aegaeon_proto.v1 import gateway_pb2 as pb

CHAT = {"model": "tiny", "messages": [HI], "stream": True}


async def streams(pool: Pool, number: int) -> list[str]:
    """So many at once, whose tokens come in the same batches, one of each in a batch; those that end."""
    pool.peer.serve_tokens = False
    asked = [asyncio.create_task(_whole(pool)) for _ in range(number)]
    await pool.peer.until(lambda: len(pool.peer.submits) == number)
    outputs = [pool.peer.tokens_of(submit, submit.choices[0]) for submit in pool.peer.submits]
    for step in zip(*outputs, strict=True):
        await pool.peer.push(step, size=number)
        await asyncio.sleep(0.02)
    done, left = await asyncio.wait(asked, timeout=1)
    for task in left:
        task.cancel()
    return [task.result() for task in done if task.exception() is None]


async def _whole(pool: Pool) -> str:
    async with pool.http.post(f"{pool.url}/v1/chat/completions", json=CHAT) as response:
        return await response.text()


async def test_a_fault_where_tokens_arrive_ends_its_own_answer_alone(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct: list[int] = []
    render, write_now = ChatRenderer.chunk, StreamWriter.write_now
    broken: list[ChatRenderer] = []

    def chunk(self: ChatRenderer, delta: Delta) -> bytes:
        broken[:] = broken or [self]
        if self is broken[0] and delta.total == 3:
            raise ArithmeticError("a defect")
        return render(self, delta)

    def counted(self: StreamWriter, transport: asyncio.Transport, events: bytes) -> None:
        direct.append(len(events))
        write_now(self, transport, events)

    monkeypatch.setattr(ChatRenderer, "chunk", chunk)
    monkeypatch.setattr(StreamWriter, "write_now", counted)
    answers = await streams(pool, 3)
    whole = [one for one in answers if one.endswith("data: [DONE]\n\n")]
    [failed] = set(answers) - set(whole)
    assert len(whole) == 2
    assert "The gateway failed on this request" in failed.split("data: ")[-1]
    assert "HTTP/1.1" not in failed
    assert len(direct) >= 4, "none was written where it arrived"


async def test_what_a_broken_stream_delivered_wakes_every_answer() -> None:
    woken: list[int] = []

    class Waiting:
        def __init__(self, number: int) -> None:
            self._number = number

        def receive(self, token: pb.Token, now: float) -> bool:
            return True

        def wake(self) -> None:
            woken.append(self._number)

    open_: Any = {str(number): Waiting(number) for number in range(100)}
    connection = Mock(spec=Connection)
    sink = TokenSink(open_, connection)
    batch = pb.TokenBatch(number=1)
    for number in range(100):
        batch.tokens.add().seq.request = str(number)
    sink.received(batch.SerializeToString())
    assert 0 < len(woken) < 100, "other streams go on meanwhile"
    connection.pause.assert_called()
    connection.resume.assert_not_called()
    sink.ended()
    connection.send.assert_called_once_with(pb.TokenAck(number=1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert sorted(woken) == list(range(100))
    connection.resume.assert_called_once()
