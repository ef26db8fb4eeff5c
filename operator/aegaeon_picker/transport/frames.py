"""Bytes to frames, one at a time, and what a frame may cost before HTTP/2's own rules are asked.

h2 takes a read whole and keeps no count of what a peer asks of it. Here every frame is cut off and charged first, and
those without a meaning for us never reach h2. Floods: CVE-2019-9512 and its relatives, CVE-2024-27316.
"""

from __future__ import annotations

from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from aegaeon_picker.transport.errors import PeerError
from aegaeon_picker.transport.limits import Bucket, Limits, Reason

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME = 1 << 14  # bytes; we never announce another
_HEADER = 9
DATA, SETTINGS = 0, 4
_HEADERS, _PRIORITY, _PING, _WINDOW_UPDATE, _CONTINUATION = 1, 2, 6, 8, 9
_ACK, _END_HEADERS = 0x1, 0x4
_MEANT = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 9})  # PRIORITY is deprecated; the rest of 0 to 9 is HTTP/2
_CHARGED = {_PRIORITY: Reason.IGNORED, _PING: Reason.PINGS, SETTINGS: Reason.SETTINGS}
_SETTING = 6  # bytes: its code and its value
_KNOWN_SETTINGS = frozenset(int(code) for code in SettingCodes)
_TABLE_BYTES = 4096  # of header compression: a peer may ask us to keep any size


Frame = tuple[int, bytes]  # its type, and the whole of it as h2 takes it; no bytes: h2 is not to have it


class FrameReader:
    """Frames of one connection. Every method may raise PeerError."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._buckets = {reason: Bucket(rate, now) for reason, rate in limits.rates.items()}
        self._received = bytearray()
        self._preface = PREFACE
        self._block_bytes = self._block_frames = 0
        self.block_since: float | None = None  # a header block is not complete

    def __len__(self) -> int:
        """Bytes that are not read yet."""
        return len(self._received)

    def add(self, data: bytes) -> None:
        """What came in."""
        if self._preface:
            got = min(len(self._preface), len(data))
            if data[:got] != self._preface[:got]:
                raise PeerError(Reason.PREFACE, "it does not speak HTTP/2", ErrorCodes.PROTOCOL_ERROR)
            self._preface = self._preface[got:]
            data = data[got:]
        self._received += data

    def charge(self, reason: Reason, now: float, count: float = 1.0) -> None:
        """The peer did what it may do so often only."""
        if not self._buckets[reason].take(now, count):
            raise PeerError(reason, f"too many {reason.replace('_', ' ')}")

    def credit(self, reason: Reason, count: float) -> None:
        """The peer did what earns it some more."""
        self._buckets[reason].give(count)

    def take(self, now: float) -> Frame | None:
        """The next one that has a meaning; None when it is not whole yet."""
        received = self._received
        if len(received) < _HEADER:
            return None
        length = int.from_bytes(received[:3])
        if length > MAX_FRAME:
            raise PeerError(
                Reason.PROTOCOL, f"a frame has {length} bytes, more than {MAX_FRAME}", ErrorCodes.FRAME_SIZE_ERROR
            )
        if len(received) < _HEADER + length:
            return None
        if len(received) == _HEADER + length:
            data = bytes(received)
            received.clear()
        else:
            data = bytes(received[: _HEADER + length])
            del received[: _HEADER + length]
        kind = data[3]
        if kind == DATA and self.block_since is None:  # most of all
            return kind, data
        return kind, self._charged(kind, data[4], data, now)

    def _charged(self, kind: int, flags: int, data: bytes, now: float) -> bytes:
        if kind in {_HEADERS, _CONTINUATION}:
            self._count_block(kind, flags, len(data) - _HEADER, now)
        elif self.block_since is not None:
            return data  # h2 says what is wrong with it
        elif kind == _WINDOW_UPDATE:
            self.charge(Reason.WINDOW_UPDATES, now)
        elif kind not in _MEANT:
            self.charge(Reason.IGNORED, now)
            return b""
        elif (reason := _CHARGED.get(kind)) is not None:
            self.charge(reason, now)
            if kind == SETTINGS and not flags & _ACK:
                data = _known_settings(data)
        return data

    def _count_block(self, kind: int, flags: int, size: int, now: float) -> None:
        """A header block is decoded when it is complete, and it must be: whatever its size, it is held until then."""
        if kind == _HEADERS:
            self._block_bytes = self._block_frames = 0
            self.block_since = now
        self._block_bytes += size
        self._block_frames += 1
        limits = self._limits
        if self._block_bytes > limits.header_block_bytes or self._block_frames > limits.header_frames:
            raise PeerError(Reason.HEADERS, "a header block is too large or in too many pieces")
        if flags & _END_HEADERS:
            self.block_since = None


def _known_settings(data: bytes) -> bytes:
    """The frame without unknown settings, since h2 keeps them all, and with a table of a bounded size."""
    if (len(data) - _HEADER) % _SETTING:
        return data  # h2 says what is wrong with it
    kept = bytearray()
    for at in range(_HEADER, len(data), _SETTING):
        code, value = int.from_bytes(data[at : at + 2]), int.from_bytes(data[at + 2 : at + _SETTING])
        if code == SettingCodes.HEADER_TABLE_SIZE:
            value = min(value, _TABLE_BYTES)
        if code in _KNOWN_SETTINGS:
            kept += code.to_bytes(2) + value.to_bytes(4)
    return len(kept).to_bytes(3) + data[3:_HEADER] + bytes(kept)
