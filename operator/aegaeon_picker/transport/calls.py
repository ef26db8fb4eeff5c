"""What a service implements to be called, and how gRPC frames the messages of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar
from urllib.parse import quote

from google.protobuf.message import DecodeError, Message
from hpack import NeverIndexedHeaderTuple

from aegaeon_picker.transport.errors import CallError, Status

PREFIX = 5  # bytes before each message: whether it is compressed, and its length
_MAX_MESSAGE = 200  # characters of an error's message

Send = Callable[[bytes], None]
Headers = list[tuple[bytes, bytes]]
M = TypeVar("M", bound=Message)


class Call(Protocol):
    """One call, made with the function that sends a message to its client."""

    lasting: bool  # it goes on after the client's last message, until the client cancels it

    def message(self, data: bytes) -> None:
        """The client's next message. Raises CallError; anything else ends the call as INTERNAL."""

    def close(self) -> None:
        """It is over, however it ended."""


Methods = Mapping[str, Callable[[Send], Call]]


def parse(kind: type[M], data: bytes) -> M:
    """A message of that kind. Raises CallError, INTERNAL as gRPC's libraries answer."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise CallError(Status.INTERNAL, f"the message is no {kind.DESCRIPTOR.name}: {error}") from error


def next_message(received: bytearray, max_bytes: int) -> bytes | None:
    """Taken off the front; None when it is not whole yet. Raises CallError for one that is not taken at all."""
    if len(received) < PREFIX:
        return None
    if received[0]:
        raise CallError(Status.UNIMPLEMENTED, "compressed messages are not taken")
    end = PREFIX + int.from_bytes(received[1:PREFIX])
    if end > max_bytes:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"a message has {end} bytes, more than {max_bytes}")
    if len(received) < end:
        return None
    message = bytes(received[PREFIX:end])
    del received[:end]
    return message


def framed(message: bytes) -> bytes:
    """As it goes over the wire."""
    return b"\0" + len(message).to_bytes(4) + message


def trailers(status: Status, message: str = "") -> Headers:
    """The end of a call. What a peer chose never enters the table that header compression keeps."""
    end = [(b"grpc-status", b"%d" % status)]
    if message:
        end.append(NeverIndexedHeaderTuple(b"grpc-message", quote(message[:_MAX_MESSAGE]).encode()))
    return end
