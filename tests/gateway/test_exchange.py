"""A request is linear: how deep in the gateway's code it is where its answer is written, and in which functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.http_writer import StreamWriter
from tests.gateway.conftest import HI, Pool

from aegaeon_gateway import run
from aegaeon_gateway.http.endpoints import ENDPOINTS

MOST = 6
GATEWAY = run.__file__.removesuffix("run.py")


def product_frames() -> Iterator[str]:
    """Functions of the gateway on the stack, the innermost first."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(GATEWAY):
            yield frame.f_code.co_qualname
        frame = frame.f_back


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The stack at each write of a head or of a part of a body."""
    seen: list[list[str]] = []
    write, send_headers = web.StreamResponse.write, StreamWriter.send_headers

    async def counted_write(self: web.StreamResponse, data: Any) -> None:
        seen.append([*product_frames()])
        await write(self, data)

    def counted_head(self: StreamWriter) -> None:
        seen.append([*product_frames()])
        send_headers(self)

    monkeypatch.setattr(web.StreamResponse, "write", counted_write)
    monkeypatch.setattr(StreamWriter, "send_headers", counted_head)
    return seen


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_stream_is_written_at_most_six_functions_deep(pool: Pool, stacks: list[list[str]], path: str) -> None:
    body = {"model": "tiny", "stream": True} | ({"input": "hi"} if "responses" in path else {"messages": [HI]})
    async with pool.http.post(pool.url + path, json=body) as response:
        assert response.status == 200
        await response.read()
    assert len(stacks) >= 2, "neither a head nor an event was written"
    assert max(map(len, stacks)) <= MOST, max(stacks, key=len)
    assert stacks[0][-1] == "Front.serve"


async def test_every_endpoint_of_the_table_is_routed_and_described(pool: Pool) -> None:
    async with pool.http.get(f"{pool.url}/openapi.json") as response:
        described = (await response.json())["paths"]
    for endpoint in ENDPOINTS.values():
        for path in endpoint.paths:
            assert "post" in described[path]
            status, answer, _ = await pool.post(path, {})
            assert status == 400, answer
