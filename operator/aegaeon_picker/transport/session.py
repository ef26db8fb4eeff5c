"""A connection without I/O: bytes in, work in bounded steps, bytes out.

It raises only PeerError, whatever the bytes are; the fuzzer checks this.
"""

from __future__ import annotations

from collections.abc import Callable

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

from aegaeon_picker.transport.budget import Budget
from aegaeon_picker.transport.calls import Methods
from aegaeon_picker.transport.errors import PeerError
from aegaeon_picker.transport.frames import DATA, PREFACE, SETTINGS, FrameReader
from aegaeon_picker.transport.limits import Clock, Reason
from aegaeon_picker.transport.rejections import Rejections
from aegaeon_picker.transport.streams import Streams

_MAX_WINDOW = 2**31 - 1  # of a connection; each stream has its own, 64 KiB, and the budget bounds the sum
_MAX_STREAM_ID = 2**31 - 1
_CLOSED_STREAMS = 1 << 10  # that are remembered, to distinguish a late frame from an invalid frame


class _H2(H2Connection):
    MAX_CLOSED_STREAMS = _CLOSED_STREAMS


class Session:
    """The connection of a client. `wake` is called when there is something to write without received bytes."""

    def __init__(
        self,
        methods: Methods,
        budget: Budget,
        rejections: Rejections,
        peer: str,
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self._limits, self._clock = budget.limits, clock
        self._since = clock()
        self._greeted = self._leaving = self._over = False
        self._h2 = _H2(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_inbound_headers=False,  # done for each stream by itself
                normalize_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self._beside = b""  # frames that bypass h2
        self._reader = FrameReader(self._limits, self._since)
        self.streams = Streams(self._h2, self._reader, methods, budget, rejections, peer, wake)
        self._start()

    @property
    def done(self) -> bool:
        """True when it accepts no more calls and has none."""
        return self._over or (self._leaving and not self.streams)

    def add(self, data: bytes) -> None:
        """Add received bytes for the next `work`. Raises PeerError."""
        if not self._over:
            self._reader.add(data)

    def work(self, until: float) -> bool:
        """Process received bytes until `until`; return whether there are more. Raises PeerError."""
        now = self._clock()
        while not self._over and not self.streams.blocked:
            if not self.streams.advance(now):
                if (frame := self._reader.take(now)) is None:
                    return False
                kind, data = frame
                self._receive(kind, data, now)
            now = self._clock()
            if now >= until:
                return True
        return False

    def to_send(self) -> bytes:
        """Return the bytes for the client."""
        beside, self._beside = self._beside, b""
        return self._h2.data_to_send() + beside

    def block(self) -> None:
        """Stop working until `unblock`, since the client does not read."""
        self.streams.blocked = True

    def unblock(self) -> None:
        """Continue, since the client reads again."""
        self.streams.blocked = False
        self.streams.push_all()

    def check(self) -> None:
        """End streams that timed out. Raises PeerError when the connection timed out."""
        now = self._clock()
        if not self._greeted and now - self._since > self._limits.handshake_s:
            raise PeerError(Reason.PREFACE, "no HTTP/2 preface in time")
        if self._reader.block_since is not None and now - self._reader.block_since > self._limits.headers_s:
            raise PeerError(Reason.HEADERS, "a header block was not complete in time")
        self.streams.expire(now)

    def leave(self) -> None:
        """Accept only calls that are already on their way (RFC 9113, 6.8)."""
        if self._leaving or self._over:
            return
        self._leaving = True
        # h2 sends GOAWAY only at the end of a connection, after which it sends nothing, so this frame bypasses it.
        self._beside = GoAwayFrame(0, last_stream_id=_MAX_STREAM_ID, error_code=ErrorCodes.NO_ERROR).serialize()

    def end(self, fault: PeerError) -> None:
        """End the connection and send the reason to the client."""
        if not self._over:
            self._over = True
            self._h2.close_connection(fault.code, str(fault).encode())

    def close(self) -> None:
        """Close all streams after the connection was lost."""
        self._over = True
        self.streams.close()

    def _start(self) -> None:
        settings = self._h2.local_settings
        settings[SettingCodes.MAX_CONCURRENT_STREAMS] = self._limits.streams_per_connection
        settings[SettingCodes.MAX_HEADER_LIST_SIZE] = self._limits.header_bytes
        settings.acknowledge()  # include them in the first settings that the client receives
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_MAX_WINDOW - self._h2.inbound_flow_control_window)
        # h2 would end the connection for an excess stream; Streams refuses the stream instead.
        settings[SettingCodes.MAX_CONCURRENT_STREAMS] = _MAX_STREAM_ID
        settings.acknowledge()
        self._h2.decoder.max_header_list_size = self._limits.header_block_bytes
        self._h2.receive_data(PREFACE)

    def _receive(self, kind: int, data: bytes, now: float) -> None:
        if not data:
            return
        try:
            received = self._h2.receive_data(data)
            for event in received:
                self._take(event, now)
        except ProtocolError as error:
            self._over = True  # h2 has notified the client
            reason = Reason.HEADERS if isinstance(error, DenialOfServiceError) else Reason.PROTOCOL
            raise PeerError(reason, str(error), ErrorCodes(error.error_code)) from error
        if kind == DATA and not received:  # h2 answered with a reset
            self._reader.charge(Reason.FRAGMENTS, now)
        if kind == SETTINGS:
            self._greeted = True

    def _take(self, event: events.Event, now: float) -> None:
        match event:
            case events.DataReceived():
                self.streams.data(event, now)
            case events.RequestReceived():
                self.streams.open(event, now)
            case events.StreamEnded(stream_id=number):
                self.streams.half_closed(number, now)
            case events.StreamReset(stream_id=number):
                self.streams.reset(number, now)
            case events.ConnectionTerminated():  # by the client; h2 sends nothing afterwards
                self._over = True
            case events.WindowUpdated(stream_id=number):
                self.streams.window_grew(number)
            case events.RemoteSettingsChanged():
                self.streams.push_all()
