"""Sends responses within the flow-control windows of the stream and of the connection."""

from __future__ import annotations

from h2.connection import H2Connection

from aegaeon_picker.transport.frames import FrameReader
from aegaeon_picker.transport.limits import Reason
from aegaeon_picker.transport.stream import Stream

_LEAST_PIECE = 1 << 10  # minimum bytes of a frame, unless it is the last one
_MAX_FRAME = 1 << 16  # maximum bytes of a frame, even if the peer allows more
_EARNED = 10  # WINDOW_UPDATE frames credited for each sent DATA frame, as in Envoy


class Sender:
    """The owner of the streams that wait for the connection's window."""

    def __init__(self, h2: H2Connection, reader: FrameReader) -> None:
        self._h2 = h2
        self._reader = reader
        self._starved: dict[int, Stream] = {}

    @property
    def resumable(self) -> list[Stream]:
        """Streams that can continue, since the connection's window has space."""
        return list(self._starved.values()) if self._h2.outbound_flow_control_window >= _LEAST_PIECE else []

    def send(self, stream: Stream) -> None:
        """Send as much as the windows allow."""
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
        """Remove a stream that has ended."""
        self._starved.pop(stream.id, None)
