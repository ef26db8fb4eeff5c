"""The interface of a service's calls, and gRPC's framing of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar
from urllib.parse import quote

from google.protobuf.message import DecodeError, Message
from hpack import NeverIndexedHeaderTuple

from aegaeon_picker.transport.errors import CallError, Status

PREFIX = 5  # bytes before each message: compression flag and length
_MAX_MESSAGE = 200  # characters of an error's message

Send = Callable[[bytes], None]
Headers = list[tuple[bytes, bytes]]
M = TypeVar("M", bound=Message)


class Call(Protocol):
    """A call, created with the function that sends a message to its client."""

    lasting: bool  # it continues after the client's last message, until the client cancels it

    def message(self, data: bytes) -> None:
        """Receive the client's next message. Raises CallError; another exception ends the call as INTERNAL."""

    def close(self) -> None:
        """End the call, whatever its outcome."""


Methods = Mapping[str, Callable[[Send], Call]]


def parse(kind: type[M], data: bytes) -> M:
    """Parse a message. Raises CallError with INTERNAL, as gRPC's libraries do."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise CallError(Status.INTERNAL, f"malformed {kind.DESCRIPTOR.name}: {error}") from error


def next_message(received: bytearray, max_bytes: int) -> bytes | None:
    """Remove and return the first message; None if it is incomplete. Raises CallError for a refused message."""
    if len(received) < PREFIX:
        return None
    if received[0]:
        raise CallError(Status.UNIMPLEMENTED, "compressed messages are not supported")
    end = PREFIX + int.from_bytes(received[1:PREFIX])
    if end > max_bytes:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"a message has {end} bytes, more than {max_bytes}")
    if len(received) < end:
        return None
    message = bytes(received[PREFIX:end])
    del received[:end]
    return message


def framed(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return b"\0" + len(message).to_bytes(4) + message


def trailers(status: Status, message: str = "") -> Headers:
    """Return the trailers of a call. Text chosen by the peer is never indexed by header compression."""
    end = [(b"grpc-status", b"%d" % status)]
    if message:
        end.append(NeverIndexedHeaderTuple(b"grpc-message", quote(message[:_MAX_MESSAGE]).encode()))
    return end
