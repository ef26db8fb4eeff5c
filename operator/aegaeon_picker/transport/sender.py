"""Answers go out as far as the client has room for them: a window for each stream, and one for the connection."""

from __future__ import annotations

from h2.connection import H2Connection

from aegaeon_picker.transport.frames import FrameReader
from aegaeon_picker.transport.limits import Reason
from aegaeon_picker.transport.stream import Stream

_LEAST_PIECE = 1 << 10  # bytes of an answer that are worth a frame, unless it is the rest
_MAX_FRAME = 1 << 16  # bytes that we put into one, whatever the peer would take
_EARNED = 10  # WINDOW_UPDATE frames for each DATA frame that we send, as Envoy allows


class Sender:
    """Owner of the streams that wait for the connection's window, not for their own."""

    def __init__(self, h2: H2Connection, reader: FrameReader) -> None:
        self._h2 = h2
        self._reader = reader
        self._starved: dict[int, Stream] = {}

    @property
    def resumable(self) -> list[Stream]:
        """Streams that the connection's window has room for by now."""
        return list(self._starved.values()) if self._h2.outbound_flow_control_window >= _LEAST_PIECE else []

    def send(self, stream: Stream) -> None:
        """Send what its client has room for."""
        h2, unsent, frames = self._h2, stream.unsent, 0
        self._starved.pop(stream.id, None)
        while unsent:
            room = min(h2.local_flow_control_window(stream.id), h2.max_outbound_frame_size, _MAX_FRAME)
            if room < min(len(unsent), _LEAST_PIECE):
                if h2.outbound_flow_control_window < _LEAST_PIECE:
                    self._starved[stream.id] = stream
                break
            h2.send_data(stream.id, bytes(unsent[:room]))
            del unsent[:room]
            frames += 1
        if frames:
            self._reader.credit(Reason.WINDOW_UPDATES, _EARNED * frames)

    def forget(self, stream: Stream) -> None:
        """The stream is over."""
        self._starved.pop(stream.id, None)
