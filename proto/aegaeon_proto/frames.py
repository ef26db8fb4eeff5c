"""Messages in frames on separate connections, for traffic too frequent for gRPC's cost: tokens.

A frame is a message's length (4 bytes, little-endian) and the message. Who dials begins with PREFACE; then each side
sends frames of one kind of message. Certificates and roles are as for gRPC (`channels`, `servers`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message

from aegaeon_proto.certificates import NO_TLS, NOT_TAKEN, OTHER_ROLE, client_context, not_of_this_pool
from aegaeon_proto.channels import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S
from aegaeon_proto.roles import Role

PREFACE = b"aegaeon frames 1\n"
HANDSHAKE_S = 10.0
_HEAD = 4
_Kind = TypeVar("_Kind", bound=Message)
# A peer whose host vanished is noticed as soon as over gRPC.
_SOCKET = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_TIMEOUT_S),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (KEEPALIVE_S + KEEPALIVE_TIMEOUT_S)),
)


class FrameError(ValueError):
    """The received data is not a frame of an acceptable size."""


def frame(message: Message) -> bytes:
    """The message prefixed with its length."""
    data = message.SerializeToString()
    return len(data).to_bytes(_HEAD, "little") + data


class Frames:
    """Splits received data into frames of at most `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._rest = bytearray()

    def of(self, data: bytes) -> Iterator[bytes]:
        """The frames that this piece completes, without their lengths. Raises FrameError."""
        self._rest += data
        while len(self._rest) >= _HEAD:
            end = _HEAD + int.from_bytes(self._rest[:_HEAD], "little")
            if end - _HEAD > self._most_bytes:
                raise FrameError(f"a frame of {end - _HEAD} bytes, {self._most_bytes} are allowed")
            if len(self._rest) < end:
                return
            message = bytes(self._rest[_HEAD:end])
            del self._rest[:end]
            yield message


async def read_frame(reader: asyncio.StreamReader, kind: type[_Kind]) -> _Kind:
    """Read the next message. Raises IncompleteReadError at the end, OSError, DecodeError when it is not one."""
    size = int.from_bytes(await reader.readexactly(_HEAD), "little")
    return kind.FromString(await reader.readexactly(size))


async def dial(target: str, tls: Path | None, peer: Role) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to `unix:PATH` or `HOST:PORT`; `tls` is the folder of certificates, None: plaintext.

    With certificates the server must have the role `peer`, wherever the target leads. Raises OSError (see `why_closed`)
    and TlsError.
    """
    async with asyncio.timeout(HANDSHAKE_S):
        if target.startswith("unix:"):
            reader, writer = await asyncio.open_unix_connection(target.removeprefix("unix:"))
        else:
            host, port = host_and_port(target)
            context, name = (client_context(tls), peer.dns_name) if tls else (None, None)
            reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    keep_alive(writer.transport)
    writer.write(PREFACE)
    return reader, writer


def host_and_port(target: str) -> tuple[str, int]:
    """Split HOST:PORT. Raises OSError when it is not that."""
    host, _, port = target.rpartition(":")
    if not host or not port.isdecimal():
        raise OSError(f"{target!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Disable send delays, and detect peers that vanished."""
    used: socket.socket = transport.get_extra_info("socket")
    if used.family != socket.AF_UNIX:
        for level, option, value in _SOCKET:
            used.setsockopt(level, option, value)


def why_closed(error: OSError, tls: Path | None) -> str:
    """The cause of a failed connection, in words; `tls` as it was dialled."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_message.startswith("Hostname mismatch"):
            return OTHER_ROLE
        return not_of_this_pool(error.verify_message, tls)
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return NO_TLS
    if isinstance(error, TimeoutError) and not error.strerror:
        return f"it does not answer within {HANDSHAKE_S:g} s"
    if tls is not None and isinstance(error, ssl.SSLError | ConnectionResetError):
        return NOT_TAKEN
    return error.strerror or str(error)
