"""Messages between an engine and the processes that follow its grammars: a JSON header and bytes, each with a length.

No pickles: what a process says that has read an untrusted grammar is checked like any input.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTHS = struct.Struct("<II")
_MOST_HEADER = 64 << 20
Header = dict[str, Any]


def send(sock: socket.socket, header: Header, tail: bytes | memoryview = b"") -> None:
    """Raises OSError when the other end is gone."""
    text = json.dumps(header).encode()
    sock.sendall(b"".join((_LENGTHS.pack(len(text), len(tail)), text, tail)))


def receive(sock: socket.socket) -> tuple[Header, bytearray] | None:
    """None at the end of the stream. Raises OSError, and TimeoutError where the socket has a time-out."""
    if (lengths := _exactly(sock, _LENGTHS.size)) is None:
        return None
    header_bytes, tail_bytes = _LENGTHS.unpack(lengths)
    if max(header_bytes, tail_bytes) > _MOST_HEADER:
        raise OSError("a message that is too long")
    text, tail = _exactly(sock, header_bytes), _exactly(sock, tail_bytes)
    if text is None or tail is None:
        return None
    try:
        header = json.loads(text)
    except ValueError as error:
        raise OSError("a message that is not JSON") from error
    if not isinstance(header, dict):
        raise OSError("a message that is not a JSON object")
    return header, tail


def _exactly(sock: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if not (count := sock.recv_into(view)):
            return None
        view = view[count:]
    return data
