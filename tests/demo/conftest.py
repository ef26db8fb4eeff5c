"""A scripted peer that speaks just enough of the OpenAI API: real HTTP and server-sent events, scripted answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

# body of a chat request -> the tokens to send, one chunk each: (text, token ids, finish reason); or an HTTP error
Script = Callable[[dict[str, Any]], list[tuple[str, list[int], str | None]] | web.HTTPException]


@asynccontextmanager
async def _serve(script: Script) -> AsyncIterator[str]:
    async def chat(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        answer = script(body)
        if isinstance(answer, web.HTTPException):
            raise answer
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for text, ids, finish in answer:
            choice = {"index": 0, "delta": {"content": text}, "token_ids": ids, "finish_reason": finish}
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
            await response.write(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", chat)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.fixture
def peer() -> Callable[[Script], Any]:
    """`async with peer(script) as url`: the peer's base URL."""
    return _serve
