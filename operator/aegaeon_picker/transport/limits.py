"""Limits of a peer: bounds of a connection, and rates of actions that cost the server more than the peer.

Where Envoy has such a limit, the default is its recommendation for edge proxies or similar; a peer that only uses
ext_proc stays far below all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Clock = Callable[[], float]  # seconds, monotonic


class Reason(StrEnum):
    """The reason of a refusal or an abort; label `reason` of the metric."""

    # connections
    CONNECTIONS = "connections"  # too many are open
    CONNECTION_RATE = "connection_rate"  # too many came from one address
    HANDSHAKE = "handshake"  # no TLS, or not in time
    PREFACE = "preface"  # no HTTP/2, or not in time
    PROTOCOL = "protocol"  # a frame that RFC 9113 does not allow
    HEADERS = "headers"  # header block too large, in too many pieces or not complete in time
    PINGS = "pings"
    SETTINGS = "settings"
    IGNORED = "ignored_frames"  # PRIORITY and frames of unknown types
    WINDOW_UPDATES = "window_updates"
    FRAGMENTS = "fragments"  # empty or tiny DATA frames
    RESETS = "resets"  # streams that ended before their first answer, or that broke a rule
    STALLED = "stalled"  # the peer does not read
    IDLE = "idle"
    # streams
    STREAMS = "streams"  # too many are open
    MALFORMED = "malformed"  # its header fields are not a gRPC request
    INCOMPLETE = "incomplete"  # its message was not complete in time
    BUFFERED = "buffered"  # it had the most buffered bytes when there were too many
    FAILED = "failed"  # a bug of the picker


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket: `per_s` tokens are added each second, up to `burst`."""

    per_s: float
    burst: float


def _rates() -> Mapping[Reason, Rate]:
    return {
        Reason.PINGS: Rate(50, 200),  # gRPC's clients probe the bandwidth with them while data flows
        Reason.SETTINGS: Rate(5, 50),
        Reason.IGNORED: Rate(50, 500),
        Reason.WINDOW_UPDATES: Rate(100, 1000),
        Reason.FRAGMENTS: Rate(100, 1000),
        Reason.RESETS: Rate(100, 500),  # Envoy's overload.premature_reset_total_stream_count: 500
        Reason.STREAMS: Rate(100, 4096),  # a client may open any number before it has read our settings
    }


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a port."""

    connections: int = 512  # in total
    connections_per_address: int = 128  # an Envoy has one or more for each of its worker threads
    connection_rate: Rate = Rate(10, 256)  # of one address; a fault costs FAULT_TOKENS more
    streams: int = 16_384  # in total: open requests of inference gateways
    streams_per_connection: int = 1024  # above it Envoy opens another connection
    message_bytes: int = 4 << 20  # gRPC's libraries have the same
    connection_bytes: int = 32 << 20  # of incomplete messages and unread responses
    buffered_bytes: int = 128 << 20  # the same of all connections
    header_bytes: int = 8 << 10  # of one request, decoded (RFC 9113, 6.5.2): above it the stream ends
    header_block_bytes: int = 16 << 10  # as sent, and decoded: above it the connection ends; gRPC has these two as well
    header_fields: int = 100  # Envoy's max_headers_count
    header_frames: int = 8  # HEADERS and its CONTINUATION frames
    handshake_s: float = 10.0  # TLS, then preface and settings
    headers_s: float = 10.0  # from the first frame of a header block to its last
    message_s: float = 30.0  # from the start of a call, or of a message, to the message's end
    stall_s: float = 30.0  # a connection whose peer does not read
    stream_idle_s: float = 900.0  # a call without a message; Envoy's own stream_idle_timeout is 300 s
    connection_idle_s: float = 900.0  # a connection without a call
    rates: Mapping[Reason, Rate] = field(default_factory=_rates)  # of one connection


FAULT_TOKENS = 16.0  # new connections that an address forgoes for each connection that ended by a fault


class Bucket:
    """A token bucket, full at first."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate, self._tokens, self._at = rate, rate.burst, now

    def take(self, now: float, count: float = 1.0) -> bool:
        """Take `count` tokens, down to minus one burst; return whether there were enough."""
        self._tokens = self._available(now) - count
        self._at = now
        if self._tokens >= 0:
            return True
        self._tokens = max(self._tokens, -self._rate.burst)
        return False

    def give(self, count: float) -> None:
        """Add `count` tokens, up to the burst."""
        self._tokens = min(self._rate.burst, self._tokens + count)

    def full(self, now: float) -> bool:
        return self._available(now) >= self._rate.burst

    def _available(self, now: float) -> float:
        return min(self._rate.burst, self._tokens + (now - self._at) * self._rate.per_s)
