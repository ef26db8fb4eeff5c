"""The streams of a connection: delivers messages to their calls and sends responses within flow control.

While a client does not read a stream's responses, no further message of it is answered and its window is not extended,
so that it buffers at most one window of messages and the responses to one message. Streams are served round-robin.
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

_WINDOW_STEP = 1 << 14  # bytes by which a window is extended at a time
_UNSENT = 1 << 16  # bytes of unsent responses above which no further message is answered
_FRAGMENT = 1 << 10  # bytes; a smaller DATA frame that completes no message is charged


class Streams:
    """The streams of a connection. `wake`: there is something to write outside of the connection's turn."""

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
        self.blocked = False  # the transport's buffer is full

    def __len__(self) -> int:
        return len(self._open)

    def open(self, event: events.RequestReceived, now: float) -> None:
        """Start a call, or refuse its stream. Raises PeerError for too many refusals."""
        number, headers = event.stream_id, event.headers
        if len(self._open) >= self._limits.streams_per_connection or self._budget.streams >= self._limits.streams:
            self._refuse(number, ErrorCodes.REFUSED_STREAM, Reason.STREAMS, "too many streams are open")
            self._reader.charge(Reason.STREAMS, now)
            return
        if is_malformed(headers):
            self._refuse(number, ErrorCodes.PROTOCOL_ERROR, Reason.MALFORMED, "its header is not a gRPC request")
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
        """Receive a part of a message, or several messages."""
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
        if not stream.ready:  # a ready stream is answered, and accounted for, before the next frame is read
            self._account(stream)

    def half_closed(self, number: int, now: float) -> None:
        """Record that the client has ended its side of a stream."""
        if (stream := self._open.get(number)) is None:
            return
        stream.ended = True
        if stream.call is None:
            self._push(stream)
        elif not stream.ready:
            self._end_of_messages(stream, now)

    def reset(self, number: int, now: float) -> None:
        """End a stream that the client, or h2 for a client's error, reset. Raises PeerError for too many resets."""
        stream = self._open.get(number)
        if stream is not None:
            self._forget(stream)
        if stream is None or not stream.answered:
            self._reader.charge(Reason.RESETS, now)

    def advance(self, now: float) -> bool:
        """Answer a message of the next ready stream; False if there is none."""
        while self._ready:
            stream = self._ready.popleft()
            stream.ready = False
            if stream.call is not None:
                self._answer(stream, now)
                return True
        return False

    def window_grew(self, number: int) -> None:
        """Continue sending after the window of a stream, or of the connection (0), grew."""
        if number:
            if (stream := self._open.get(number)) is not None:
                self._push(stream)
        else:
            for stream in self._sender.resumable:
                self._push(stream)

    def push_all(self) -> None:
        """Continue sending on all streams, since windows grew or the transport accepts data again."""
        for stream in list(self._open.values()):
            if stream.unsent or stream.end is not None:
                self._push(stream)

    def expire(self, now: float) -> None:
        """End streams that timed out. Raises PeerError for too many of them."""
        limits = self._limits
        for stream in list(self._open.values()):
            if stream.since is not None and now - stream.since > limits.message_s:
                self._drop(stream, ErrorCodes.CANCEL, Reason.INCOMPLETE, "its message was not complete in time")
            elif now - stream.at > limits.stream_idle_s and not (stream.call is not None and stream.call.lasting):
                self._drop(stream, ErrorCodes.CANCEL, Reason.IDLE, "no message within the idle timeout")

    def drop_largest(self) -> bool:
        """End the stream with the most buffered bytes (see Holder)."""
        largest = max(self._open.values(), key=lambda stream: stream.counted, default=None)
        if largest is None or not largest.counted:
            return False
        self._drop(largest, ErrorCodes.ENHANCE_YOUR_CALM, Reason.BUFFERED, "too many bytes are buffered")
        return True

    def close(self) -> None:
        """End every call after the connection has ended."""
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
                self._reject(stream, Status.INTERNAL, "the stream ended within a message", now)
        elif stream.call.lasting:
            stream.since = None
        else:
            if not stream.answered:  # as cheap to a client as a reset
                self._reader.charge(Reason.RESETS, now)
            self._finish(stream, Status.OK)

    def _get_ready(self, stream: Stream) -> None:
        """Queue a stream with a message, unless its client does not read."""
        if not stream.ready and len(stream.unsent) < _UNSENT:
            stream.ready = True
            self._ready.append(stream)

    def _send(self, stream: Stream, message: bytes) -> None:
        if stream.call is None:
            return
        stream.unsent += framed(message)
        if not self._in_turn:  # within a turn all responses are sent together
            self._push(stream)
            self._wake()

    def _push(self, stream: Stream) -> None:
        """Send as much as the windows allow; when all is sent, extend the client's window."""
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
            if not stream.ended:  # like gRPC's servers: further data of the client is not read (RFC 9113, 8.1)
                self._h2.reset_stream(stream.id, ErrorCodes.NO_ERROR)
            self._forget(stream)

    def _give_back(self, stream: Stream) -> None:
        """Extend the client's window if all responses of the stream were sent."""
        if stream.held >= _WINDOW_STEP and not stream.unsent:
            self._h2.acknowledge_received_data(stream.held, stream.id)
            stream.held = 0

    def _account(self, stream: Stream) -> None:
        holds = len(stream.received) + len(stream.unsent)
        if change := holds - stream.counted:
            stream.counted = holds
            self._budget.hold(self, change)

    def _reject(self, stream: Stream, status: Status, message: str, now: float) -> None:
        """End a call for a fault of the client. Raises PeerError for too many of them."""
        self._finish(stream, status, message)
        self._reader.charge(Reason.RESETS, now)

    def _finish(self, stream: Stream, status: Status, message: str = "") -> None:
        """End a call; its status is sent after the unsent responses."""
        stream.end = trailers(status, message)
        stream.since = None
        stream.received.clear()
        self._close_call(stream)
        self._push(stream)

    def _refuse(self, number: int, code: ErrorCodes, reason: Reason, message: str) -> None:
        self._h2.reset_stream(number, code)
        self._rejections.add("stream", reason, self._peer, message)

    def _drop(self, stream: Stream, code: ErrorCodes, reason: Reason, message: str) -> None:
        """End a stream at once, without its unsent responses."""
        self._refuse(stream.id, code, reason, message)
        self._forget(stream)
        self._wake()

    def _forget(self, stream: Stream, give_back: bool = True) -> None:
        if self._open.pop(stream.id, None) is None:
            return
        self._budget.streams -= 1
        self._sender.forget(stream)
        if stream.held and give_back:  # to the connection's window; the stream's no longer exists
            self._h2.acknowledge_received_data(stream.held, stream.id)
        stream.received.clear()
        stream.unsent.clear()
        self._account(stream)
        self._close_call(stream)

    def _close_call(self, stream: Stream) -> None:
        if stream.call is not None:
            stream.call.close()
            stream.call = None
