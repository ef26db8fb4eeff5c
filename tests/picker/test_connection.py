"""A session on a transport that a test plays, for what takes too long."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from picker.hostile import DATA, HELLO, body_request, frame, grpc_message, open_stream, settings, window

from aegaeon_cli.demo.stack import free_port
from aegaeon_picker.__main__ import _run
from aegaeon_picker.fleet import Endpoint, Fleet
from aegaeon_picker.metrics import Metrics
from aegaeon_picker.server import Picker
from aegaeon_picker.transport import server
from aegaeon_picker.transport.budget import Budget
from aegaeon_picker.transport.connection import Connection
from aegaeon_picker.transport.limits import Limits, Reason
from aegaeon_picker.transport.rejections import Rejections
from aegaeon_picker.transport.turns import Turns


@dataclass
class Wire:
    """A transport, and the connection on it."""

    now: float = 0.0
    written: bytearray = field(default_factory=bytearray)
    log: list[str] = field(default_factory=list)
    rejected: list[Reason] = field(default_factory=list)

    def __post_init__(self) -> None:
        fleet = Fleet()
        fleet.update([Endpoint("10.0.0.1", 8000)])
        methods = Picker(fleet, Metrics(fleet), conformance=False).methods
        rejections = Rejections(lambda scope, reason: self.rejected.append(reason), self.clock)
        self.budget = Budget(Limits())
        turns = Turns(lambda call: None, self.clock)
        self.connection = Connection(
            "peer", methods, self.budget, rejections, turns, self.clock, lambda which, faulty: self.log.append("lost")
        )
        self.connection.connection_made(cast("Any", self))

    def clock(self) -> float:
        return self.now

    def get_extra_info(self, name: str) -> "Wire":
        return self

    def setsockopt(self, *args: object) -> None:
        """It is the socket too."""

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.log.append("pause")

    def resume_reading(self) -> None:
        self.log.append("resume")

    def close(self) -> None:
        self.log.append("close")

    def abort(self) -> None:
        self.log.append("abort")


ASKED = frame(DATA, 1, grpc_message(body_request(b"x" * 1000)))


def test_a_peer_that_does_not_read_gets_back_pressure() -> None:
    wire = Wire()
    wire.connection.data_received(HELLO + open_stream(1))
    wire.connection.pause_writing()
    assert wire.log == ["pause"]
    before = len(wire.written)
    wire.connection.data_received(ASKED * 10)
    assert len(wire.written) == before
    wire.connection.resume_writing()
    assert len(wire.written) > before + 10_000
    assert wire.log == ["pause", "resume"]


def test_a_peer_that_does_not_read_for_long_gets_goaway_and_is_closed() -> None:
    wire = Wire()
    wire.connection.data_received(HELLO + open_stream(1) + ASKED)
    wire.connection.pause_writing()
    for at, log in [
        (29, ["pause"]),
        (31, ["pause", "close"]),
        (35, ["pause", "close"]),
        (37, ["pause", "close", "abort"]),
    ]:
        wire.now = at
        wire.connection.check()
        assert wire.log == log
    wire.connection.connection_lost(None)
    assert wire.rejected == [Reason.STALLED]
    assert (wire.budget.streams, wire.budget.bytes) == (0, 0)


def test_a_connection_without_a_call_for_long_is_closed() -> None:
    wire = Wire()
    wire.connection.data_received(HELLO)
    wire.connection.check()
    wire.now = 901
    wire.connection.check()
    assert wire.log == ["close"]
    assert wire.rejected == [Reason.IDLE]


def test_a_fault_closes_the_connection_and_what_comes_after_it_is_not_read() -> None:
    wire = Wire()
    wire.connection.data_received(HELLO + settings() * 100)
    assert wire.log == ["close"]
    written = len(wire.written)
    wire.connection.data_received(window(0, 1) * 1000)
    assert len(wire.written) == written


async def test_a_picker_that_can_end_no_connections_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(connection: Connection) -> None:
        raise ZeroDivisionError(connection.address)

    monkeypatch.setattr(Connection, "check", defect)
    monkeypatch.setattr(server, "_CHECK_S", 0.01)
    port = free_port()
    ports = f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}", 0
    picker = _run(Limits(), None, "default", "127.0.0.1:1", *ports, "off", 0.0, conformance=False)
    running = asyncio.create_task(picker)
    async with asyncio.timeout(60):
        while not running.done():
            with suppress(ConnectionError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.wait([running], timeout=1.0)
                writer.close()
            await asyncio.sleep(0.01)
    with pytest.raises(ZeroDivisionError, match=r"127\.0\.0\.1"):
        await running
