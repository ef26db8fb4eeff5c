"""gRPC calls over HTTP/2, answered in the very turn of the event loop in which a message arrives.

grpcio passes every message from its threads to asyncio's and back, reads and writes apart, which was most of what a
picker added to a request (docs/design/decisions.md). Here h2 speaks HTTP/2 on an asyncio transport, and a message
goes to its call, and the answer back, by plain function calls. No metadata, no compression, no deadlines: who calls a
picker uses none. Source: gRPC over HTTP2 (grpc/doc/PROTOCOL-HTTP2.md); RFC 9113.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, cast
from urllib.parse import quote

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

log = logging.getLogger(__name__)

MAX_MESSAGE = 4 << 20  # bytes, as gRPC's libraries have it
_PREFIX = 5  # bytes before each message: whether it is compressed, and its length
_MAX_WINDOW = 2**31 - 1  # of a connection; each stream has its own, 64 KiB, so that bounds what is held
_GIVEN_BACK = 1 << 14  # bytes of it and of a stream's that are given back together
_MAX_STREAM_ID = 2**31 - 1
_KEEPALIVE_S = 60  # then a peer that is gone is asked for, so that its open calls end

Send = Callable[[bytes], None]


class Status(IntEnum):
    """Those of gRPC's that are used here."""

    OK = 0
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class CallError(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class Call(Protocol):
    """One call, made with the function that sends a message to its client."""

    lasting: bool  # it goes on after the client's last message, until the client cancels it

    def message(self, data: bytes) -> None:
        """The client's next message. Raises CallError; anything else ends the call as INTERNAL."""

    def close(self) -> None:
        """It is over, however it ended."""


Methods = Mapping[str, Callable[[Send], Call]]


@dataclass(slots=True)
class _Stream:
    id: int
    call: Call | None = None  # None once it is over; then what the client still sends is dropped
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    held: int = 0  # bytes that were received and not yet given back to the client's window
    ended: bool = False  # by the client
    end: list[tuple[bytes, bytes]] | None = None  # trailers that go out behind the last message


class Connection(asyncio.Protocol):
    """One client's connection. A member of `open_ones` from its first byte to its last."""

    def __init__(self, methods: Methods, open_ones: set[Connection]) -> None:
        self._methods, self._open_ones = methods, open_ones
        self._streams: dict[int, _Stream] = {}
        self._taking = self._leaving = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        # A call lasts as long as the answer of a model, so that a gateway has very many open.
        self._h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = _MAX_STREAM_ID
        self._h2.local_settings.acknowledge()  # so that it is among those that the client is told first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._open_ones.add(self)
        peer: socket.socket = transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_MAX_WINDOW - self._h2.inbound_flow_control_window)
        self._write()

    def data_received(self, data: bytes) -> None:
        self._taking = True
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
        except ProtocolError as error:
            log.warning("%s does not speak HTTP/2: %s", self._transport.get_extra_info("peername"), error)
            self._transport.write(self._h2.data_to_send())
            self._transport.close()
        self._taking = False
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # what it was, its calls are over
        for stream in self._streams.values():
            self._close_call(stream)
        self._streams.clear()
        self._open_ones.discard(self)
        self.closed.set_result(None)

    def leave(self) -> None:
        """Take no more calls than those that are on their way, and close behind the last one (RFC 9113, 6.8)."""
        self._leaving = True
        # h2 knows the end of a connection alone, after which nothing may be sent.
        self._transport.write(GoAwayFrame(0, last_stream_id=_MAX_STREAM_ID, error_code=ErrorCodes.NO_ERROR).serialize())
        self._write()

    def abort(self) -> None:
        """Cut it off."""
        self._transport.abort()

    def _take(self, event: events.Event) -> None:
        match event:
            case events.DataReceived():
                self._read(event)
            case events.RequestReceived():
                self._open(event)
            case events.StreamEnded():
                self._half_closed(event.stream_id)
            case events.StreamReset():
                self._forget(event.stream_id)
            case events.ConnectionTerminated():  # by the client; h2 sends nothing any more from here on
                self._transport.close()
            case events.WindowUpdated(stream_id=number) if number in self._streams:
                self._push(self._streams[number])
            case events.WindowUpdated(stream_id=0) | events.RemoteSettingsChanged():
                for stream in list(self._streams.values()):
                    self._push(stream)

    def _open(self, event: events.RequestReceived) -> None:
        path = dict(event.headers).get(b":path", b"").decode("utf-8", "replace")
        stream = self._streams[event.stream_id] = _Stream(event.stream_id)
        self._h2.send_headers(stream.id, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        if (method := self._methods.get(path)) is not None:
            stream.call = method(lambda message: self._send(stream, message))
        else:
            self._finish(stream, Status.UNIMPLEMENTED, f"no method {path}")

    def _read(self, event: events.DataReceived) -> None:
        if (stream := self._streams.get(event.stream_id)) is None:  # it was reset behind this
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return
        stream.received += event.data
        stream.held += event.flow_controlled_length
        try:
            while stream.call is not None and (message := _next_message(stream.received)) is not None:
                stream.call.message(message)
        except CallError as error:
            self._finish(stream, error.status, str(error))
        except Exception as error:  # raised on, asyncio would end the connection and all its calls for one call's bug
            log.exception("a call failed")
            self._finish(stream, Status.INTERNAL, f"{type(error).__name__}: {error}")
        else:
            self._push(stream)
        if stream.call is None:
            stream.received.clear()

    def _half_closed(self, stream_id: int) -> None:
        if (stream := self._streams.get(stream_id)) is None:
            return
        stream.ended = True
        if stream.call is None:
            self._push(stream)
        elif not stream.call.lasting:
            self._finish(stream, Status.OK)

    def _finish(self, stream: _Stream, status: Status, message: str = "") -> None:
        """Its status goes out behind what is unsent."""
        stream.end = [(b"grpc-status", b"%d" % status)]
        if message:
            stream.end.append((b"grpc-message", quote(message).encode()))
        self._close_call(stream)
        self._push(stream)

    def _send(self, stream: _Stream, message: bytes) -> None:
        stream.unsent += b"\0" + len(message).to_bytes(4) + message
        if not self._taking:  # else all answers go out together
            self._push(stream)
            self._write()

    def _push(self, stream: _Stream) -> None:
        """Send what the client has room for, and take as much again once all is sent."""
        h2, unsent = self._h2, stream.unsent
        while unsent and (room := min(h2.local_flow_control_window(stream.id), h2.max_outbound_frame_size)):
            h2.send_data(stream.id, bytes(unsent[:room]))
            del unsent[:room]
        if unsent:
            return
        if stream.held >= _GIVEN_BACK:
            h2.acknowledge_received_data(stream.held, stream.id)
            stream.held = 0
        if stream.end is not None:
            h2.send_headers(stream.id, stream.end, end_stream=True)
            stream.end = None
        if stream.call is None and stream.ended:
            self._forget(stream.id)

    def _forget(self, stream_id: int) -> None:
        if (stream := self._streams.pop(stream_id, None)) is not None:
            if stream.held:  # to the connection's window, for the stream has none any more
                self._h2.acknowledge_received_data(stream.held, stream_id)
            self._close_call(stream)

    def _close_call(self, stream: _Stream) -> None:
        if stream.call is not None:
            stream.call.close()
            stream.call = None

    def _write(self) -> None:
        if data := self._h2.data_to_send():
            self._transport.write(data)
        if self._leaving and not self._streams:
            self._transport.close()


def _next_message(received: bytearray) -> bytes | None:
    """Taken off the front; None when it is not whole yet. Raises CallError for one that is not taken at all."""
    if len(received) < _PREFIX:
        return None
    if received[0]:
        raise CallError(Status.UNIMPLEMENTED, "compressed messages are not taken")
    end = _PREFIX + int.from_bytes(received[1:_PREFIX])
    if end > MAX_MESSAGE:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"a message has {end} bytes, more than {MAX_MESSAGE}")
    if len(received) < end:
        return None
    message = bytes(received[_PREFIX:end])
    del received[:end]
    return message


class Server:
    """A port on which calls are taken."""

    def __init__(self, methods: Methods, tls: ssl.SSLContext | None = None) -> None:
        self._methods, self._tls = methods, tls
        self._connections: set[Connection] = set()
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """At that address; port 0: any, see `port`. Raises OSError when it is taken."""
        made = asyncio.get_running_loop().create_server(
            lambda: Connection(self._methods, self._connections), host, port, ssl=self._tls
        )
        self._listening = await made
        self.port = self._listening.sockets[0].getsockname()[1]

    async def stop(self, grace_s: float) -> None:
        """Take no more calls; those that are open have `grace_s` to end."""
        self._listening.close()
        for connection in list(self._connections):
            connection.leave()
        if self._connections:
            await asyncio.wait([connection.closed for connection in self._connections], timeout=grace_s)
        for connection in list(self._connections):
            connection.abort()
