"""The streams of one connection: messages to their calls, answers out as far as the client has room for them.

A stream whose answers are not taken has no further message answered, and its window is not given back, so that it holds
one window of messages and the answers to one of them. Streams with messages are served in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from h2 import events
from h2.connection import H2Connection
from h2.errors import ErrorCodes

from aegaeon_picker.transport.budget import Budget
from aegaeon_picker.transport.calls import Methods, framed, next_message, trailers
from aegaeon_picker.transport.errors import CallError, Status
from aegaeon_picker.transport.frames import FrameReader
from aegaeon_picker.transport.limits import Reason
from aegaeon_picker.transport.rejections import Rejections
from aegaeon_picker.transport.requests import is_malformed, size_of
from aegaeon_picker.transport.sender import Sender
from aegaeon_picker.transport.stream import Stream

_GIVEN_BACK = 1 << 14  # bytes of a window that are given back together
_UNSENT = 1 << 16  # bytes of answers behind which no further message is answered
_FRAGMENT = 1 << 10  # bytes; a smaller DATA frame that completes no message is charged


class Streams:
    """All of a connection. `wake` is called when there is something to write outside of the connection's turn."""

    def __init__(
        self,
        h2: H2Connection,
        reader: FrameReader,
        methods: Methods,
        budget: Budget,
        rejections: Rejections,
        peer: str,
        wake: Callable[[], None],
    ) -> None:
        self._h2, self._reader, self._methods = h2, reader, methods
        self._budget, self._limits, self._rejections, self._peer = budget, budget.limits, rejections, peer
        self._wake = wake
        self._open: dict[int, Stream] = {}
        self._ready: deque[Stream] = deque()
        self._sender = Sender(h2, reader)
        self._in_turn = False
        self.blocked = False  # the transport takes nothing

    def __len__(self) -> int:
        return len(self._open)

    def open(self, event: events.RequestReceived, now: float) -> None:
        """A call begins, or is refused alone. Raises PeerError when there are too many of the latter."""
        number, headers = event.stream_id, event.headers
        if len(self._open) >= self._limits.streams_per_connection or self._budget.streams >= self._limits.streams:
            self._refuse(number, ErrorCodes.REFUSED_STREAM, Reason.STREAMS, "too many streams are open")
            self._reader.charge(Reason.STREAMS, now)
            return
        if is_malformed(headers):
            self._refuse(number, ErrorCodes.PROTOCOL_ERROR, Reason.MALFORMED, "its header fields are no request")
            self._reader.charge(Reason.RESETS, now)
            return
        stream = self._open[number] = Stream(number, at=now, since=now)
        self._budget.streams += 1
        self._h2.send_headers(number, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        path = dict(headers)[b":path"].decode("ascii", "replace")
        if len(headers) > self._limits.header_fields or size_of(headers) > self._limits.header_bytes:
            self._reject(stream, Status.RESOURCE_EXHAUSTED, "its header fields are too large or too many", now)
        elif (method := self._methods.get(path)) is None:
            self._reject(stream, Status.UNIMPLEMENTED, f"no method {path}", now)
        else:
            stream.call = method(lambda message: self._send(stream, message))

    def data(self, event: events.DataReceived, now: float) -> None:
        """A piece of a message, or several messages."""
        if (stream := self._open.get(event.stream_id)) is None or stream.call is None:
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return
        stream.received += event.data
        stream.held += event.flow_controlled_length
        if stream.has_message(self._limits.message_bytes):
            stream.since = None
            self._get_ready(stream)
        else:
            stream.since = now if stream.since is None else stream.since
            self._give_back(stream)
            if len(event.data) < _FRAGMENT and event.stream_ended is None:
                self._reader.charge(Reason.FRAGMENTS, now)
        if not stream.ready:  # else it is answered before the next frame is read, and accounted for then
            self._account(stream)

    def half_closed(self, number: int, now: float) -> None:
        """The client sends no more."""
        if (stream := self._open.get(number)) is None:
            return
        stream.ended = True
        if stream.call is None:
            self._push(stream)
        elif not stream.ready:
            self._end_of_messages(stream, now)

    def reset(self, number: int, now: float) -> None:
        """By the client, or by h2 for a mistake of the client. Raises PeerError when that is too often."""
        stream = self._open.get(number)
        if stream is not None:
            self._forget(stream)
        if stream is None or not stream.answered:
            self._reader.charge(Reason.RESETS, now)

    def advance(self, now: float) -> bool:
        """Answer one message, of the stream whose turn it is; False when there is none."""
        while self._ready:
            stream = self._ready.popleft()
            stream.ready = False
            if stream.call is not None:
                self._answer(stream, now)
                return True
        return False

    def window_grew(self, number: int) -> None:
        """Of one stream, or of the connection (0)."""
        if number:
            if (stream := self._open.get(number)) is not None:
                self._push(stream)
        else:
            for stream in self._sender.resumable:
                self._push(stream)

    def push_all(self) -> None:
        """All windows may have grown, or the transport takes something again."""
        for stream in list(self._open.values()):
            if stream.unsent or stream.end is not None:
                self._push(stream)

    def expire(self, now: float) -> None:
        """End the streams whose time is over. Raises PeerError when there are too many of them."""
        limits = self._limits
        for stream in list(self._open.values()):
            if stream.since is not None and now - stream.since > limits.message_s:
                self._drop(stream, ErrorCodes.CANCEL, Reason.INCOMPLETE, "its message did not come in time")
            elif now - stream.at > limits.stream_idle_s and not (stream.call is not None and stream.call.lasting):
                self._drop(stream, ErrorCodes.CANCEL, Reason.IDLE, "it had no message for long")

    def drop_largest(self) -> bool:
        """See Holder."""
        largest = max(self._open.values(), key=lambda each: each.counted, default=None)
        if largest is None or not largest.counted:
            return False
        self._drop(largest, ErrorCodes.ENHANCE_YOUR_CALM, Reason.BUFFERED, "too many bytes are buffered")
        return True

    def close(self) -> None:
        """The connection is over, and so is every call."""
        for stream in list(self._open.values()):
            self._forget(stream, give_back=False)
        self._ready.clear()
        self._budget.leave(self)

    def _answer(self, stream: Stream, now: float) -> None:
        self._in_turn = True
        try:
            assert stream.call is not None
            if (message := next_message(stream.received, self._limits.message_bytes)) is not None:
                stream.call.message(message)
        except CallError as error:
            self._reject(stream, error.status, str(error), now)
        except Exception as error:  # noqa: BLE001 - one call's bug must not end the connection's other calls
            self._rejections.add("stream", Reason.FAILED, self._peer, f"{type(error).__name__}: {error}", error)
            self._finish(stream, Status.INTERNAL, "the service failed")
        else:
            self._answered(stream, now)
        finally:
            self._in_turn = False

    def _answered(self, stream: Stream, now: float) -> None:
        stream.at, stream.answered = now, True
        more = bool(stream.received) and stream.has_message(self._limits.message_bytes)
        stream.since = now if stream.received and not more else None
        self._push(stream)
        if more:
            self._get_ready(stream)
        elif stream.ended:
            self._end_of_messages(stream, now)

    def _end_of_messages(self, stream: Stream, now: float) -> None:
        if stream.call is None or stream.ready:
            return
        if stream.received:
            if not stream.has_message(self._limits.message_bytes):
                self._reject(stream, Status.INTERNAL, "it ended within a message", now)
        elif stream.call.lasting:
            stream.since = None
        else:
            if not stream.answered:  # as cheap to a client as a reset
                self._reader.charge(Reason.RESETS, now)
            self._finish(stream, Status.OK)

    def _get_ready(self, stream: Stream) -> None:
        """To be served, unless its answers are not taken."""
        if not stream.ready and len(stream.unsent) < _UNSENT:
            stream.ready = True
            self._ready.append(stream)

    def _send(self, stream: Stream, message: bytes) -> None:
        if stream.call is None:
            return
        stream.unsent += framed(message)
        if not self._in_turn:  # else all answers go out together
            self._push(stream)
            self._wake()

    def _push(self, stream: Stream) -> None:
        """Send what the client has room for, and take as much again once all is sent."""
        had_enough = len(stream.unsent) >= _UNSENT
        if not self.blocked:
            self._sender.send(stream)
        if not stream.unsent and not self.blocked:
            self._all_sent(stream)
        elif had_enough and len(stream.unsent) < _UNSENT and stream.has_message(self._limits.message_bytes):
            self._get_ready(stream)
        if stream.id in self._open:
            self._account(stream)

    def _all_sent(self, stream: Stream) -> None:
        self._give_back(stream)
        if stream.received and stream.call is not None and stream.has_message(self._limits.message_bytes):
            self._get_ready(stream)
        if stream.end is not None:
            self._h2.send_headers(stream.id, stream.end, end_stream=True)
            stream.end = None
            if not stream.ended:  # as gRPC's servers do: what it still sends is not read (RFC 9113, 8.1)
                self._h2.reset_stream(stream.id, ErrorCodes.NO_ERROR)
            self._forget(stream)

    def _give_back(self, stream: Stream) -> None:
        """Its bytes are with us, and no answer of it waits."""
        if stream.held >= _GIVEN_BACK and not stream.unsent:
            self._h2.acknowledge_received_data(stream.held, stream.id)
            stream.held = 0

    def _account(self, stream: Stream) -> None:
        holds = len(stream.received) + len(stream.unsent)
        if change := holds - stream.counted:
            stream.counted = holds
            self._budget.hold(self, change)

    def _reject(self, stream: Stream, status: Status, message: str, now: float) -> None:
        """The client's fault. Raises PeerError when there are too many of them."""
        self._finish(stream, status, message)
        self._reader.charge(Reason.RESETS, now)

    def _finish(self, stream: Stream, status: Status, message: str = "") -> None:
        """Its status goes out behind what is unsent."""
        stream.end = trailers(status, message)
        stream.since = None
        stream.received.clear()
        self._close_call(stream)
        self._push(stream)

    def _refuse(self, number: int, code: ErrorCodes, reason: Reason, message: str) -> None:
        self._h2.reset_stream(number, code)
        self._rejections.add("stream", reason, self._peer, message)

    def _drop(self, stream: Stream, code: ErrorCodes, reason: Reason, message: str) -> None:
        """Now, and what is unsent with it."""
        self._refuse(stream.id, code, reason, message)
        self._forget(stream)
        self._wake()

    def _forget(self, stream: Stream, give_back: bool = True) -> None:
        if self._open.pop(stream.id, None) is None:
            return
        self._budget.streams -= 1
        self._sender.forget(stream)
        if stream.held and give_back:  # to the connection's window, for the stream has none any more
            self._h2.acknowledge_received_data(stream.held, stream.id)
        stream.received.clear()
        stream.unsent.clear()
        self._account(stream)
        self._close_call(stream)

    def _close_call(self, stream: Stream) -> None:
        if stream.call is not None:
            stream.call.close()
            stream.call = None
