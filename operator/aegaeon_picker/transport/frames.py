"""Splits bytes into frames and charges each frame before HTTP/2's own rules apply.

h2 processes a read at a time and does not limit a peer's requests. This reader charges every frame first, and frames
without effect never reach h2. Floods: CVE-2019-9512 and its relatives, CVE-2024-27316.
"""

from __future__ import annotations

from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from aegaeon_picker.transport.errors import PeerError
from aegaeon_picker.transport.limits import Bucket, Limits, Reason

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME = 1 << 14  # bytes; the server never announces another
_HEADER = 9
DATA, SETTINGS = 0, 4
_HEADERS, _PRIORITY, _PING, _WINDOW_UPDATE, _CONTINUATION = 1, 2, 6, 8, 9
_ACK, _END_HEADERS = 0x1, 0x4
_MEANT = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 9})  # PRIORITY is deprecated; the rest of 0 to 9 is HTTP/2
_CHARGED = {_PRIORITY: Reason.IGNORED, _PING: Reason.PINGS, SETTINGS: Reason.SETTINGS}
_SETTING = 6  # bytes: its code and its value
_KNOWN_SETTINGS = frozenset(int(code) for code in SettingCodes)
_TABLE_BYTES = 4096  # of header compression: a peer may ask us to keep any size


Frame = tuple[int, bytes]  # its type, and its bytes for h2; empty: h2 must not receive it


class FrameReader:
    """The frames of a connection. Every method may raise PeerError."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._buckets = {reason: Bucket(rate, now) for reason, rate in limits.rates.items()}
        self._received = bytearray()
        self._preface = PREFACE
        self._block_bytes = self._block_frames = 0
        self.block_since: float | None = None  # a header block is not complete

    def __len__(self) -> int:
        """Return the bytes that are not processed yet."""
        return len(self._received)

    def add(self, data: bytes) -> None:
        """Add received bytes."""
        if self._preface:
            got = min(len(self._preface), len(data))
            if data[:got] != self._preface[:got]:
                raise PeerError(Reason.PREFACE, "the peer does not use HTTP/2", ErrorCodes.PROTOCOL_ERROR)
            self._preface = self._preface[got:]
            data = data[got:]
        self._received += data

    def charge(self, reason: Reason, now: float, count: float = 1.0) -> None:
        """Charge an action of the peer that is limited in rate."""
        if not self._buckets[reason].take(now, count):
            raise PeerError(reason, f"too many {reason.replace('_', ' ')}")

    def credit(self, reason: Reason, count: float) -> None:
        """Credit an action of the peer."""
        self._buckets[reason].give(count)

    def take(self, now: float) -> Frame | None:
        """Return the next frame; None if it is incomplete."""
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
        if kind == DATA and self.block_since is None:  # the most frequent case
            return kind, data
        return kind, self._charged(kind, data[4], data, now)

    def _charged(self, kind: int, flags: int, data: bytes, now: float) -> bytes:
        if kind in {_HEADERS, _CONTINUATION}:
            self._count_block(kind, flags, len(data) - _HEADER, now)
        elif self.block_since is not None:
            return data  # h2 reports the error
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
        """Count a header block, which is buffered until it is complete and then decoded."""
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
    """Return a SETTINGS frame without unknown settings, which h2 would keep, and with a bounded header table size."""
    if (len(data) - _HEADER) % _SETTING:
        return data  # h2 reports the error
    kept = bytearray()
    for at in range(_HEADER, len(data), _SETTING):
        code, value = int.from_bytes(data[at : at + 2]), int.from_bytes(data[at + 2 : at + _SETTING])
        if code == SettingCodes.HEADER_TABLE_SIZE:
            value = min(value, _TABLE_BYTES)
        if code in _KNOWN_SETTINGS:
            kept += code.to_bytes(2) + value.to_bytes(4)
    return len(kept).to_bytes(3) + data[3:_HEADER] + bytes(kept)
