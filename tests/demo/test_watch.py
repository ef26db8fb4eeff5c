"""The live view: pictures of a moment, and statuses followed from a real gRPC server."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console

from aegaeon_cli.demo.traffic import Chat, Exchange
from aegaeon_cli.demo.view import headline, line, picture
from aegaeon_cli.demo.watch import Watcher
from aegaeon_proto.servers import make_server
from aegaeon_proto.v1 import gateway_pb2_grpc
from aegaeon_proto.v1.engine_pb2 import Memory, Role
from aegaeon_proto.v1.gateway_pb2 import InstanceStatus, ModelTraffic, PoolStatus, StatusRequest

STATUS = PoolStatus(
    uptime_s=12.3,
    instances=[
        InstanceStatus(
            instance="decode-0",
            role=Role.ROLE_DECODE,
            alive=True,
            running="qwen2",
            resident=["llama", "qwen2"],
            slabs=64,
            memory=Memory(slabs_free=16),
            switches=7,
        )
    ],
    models=[ModelTraffic(model="llama", queued=2), ModelTraffic(model="qwen2")],
)
EXCHANGES = [
    Exchange(Chat("llama", "?"), 0.0, text="Return the [bold]docstring", tokens=[1, 2, 3]),
    Exchange(Chat("qwen2", "?"), 1.0, text="done", tokens=[4], finish_reason="stop"),
]


class Frontend(gateway_pb2_grpc.FrontendServicer):
    async def Status(  # type: ignore[override]  # the stub is for sync servers as well
        self, request: StatusRequest, context: object
    ) -> AsyncIterator[PoolStatus]:
        yield STATUS
        await asyncio.Event().wait()


class Screen(io.StringIO):
    """`shown` is set when these words are."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.shown = asyncio.Event()
        self._words = words

    def write(self, text: str) -> int:
        if self._words in text:
            self.shown.set()
        return super().write(text)


def test_the_headline_counts_tokens_switches_and_requests() -> None:
    assert headline(STATUS, EXCHANGES).split() == (
        "12.3 s 4 tokens 7 switches 1 done 1 open 2 queued".split()  # noqa: SIM905
    )


def test_the_line_shows_which_model_runs_on_which_engine() -> None:
    assert "decode-0 runs qwen2 (holds llama qwen2)" in line(STATUS, EXCHANGES)


def test_the_picture_shows_engines_and_answers_as_they_are() -> None:
    console = Console(file=io.StringIO(), width=140)
    console.print(picture(STATUS, EXCHANGES))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "48/64" in shown
    assert "Return the [bold]docstring" in shown
    assert "stop" in shown


async def test_the_watcher_follows_the_scheduler_and_keeps_the_last_status(sockets: Path) -> None:
    server = make_server()
    gateway_pb2_grpc.add_FrontendServicer_to_server(Frontend(), server)
    target = f"unix:{sockets}/scheduler.sock"
    server.add_insecure_port(target)
    await server.start()
    screen = Screen("decode-0")
    watcher = Watcher(target, EXCHANGES, Console(file=screen, force_terminal=True, width=140))
    async with asyncio.timeout(60), watcher.watching():
        await screen.shown.wait()
    await server.stop(None)
    assert watcher.status.instances[0].switches == 7
    assert "decode-0" in screen.getvalue()
