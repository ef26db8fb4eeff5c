"""A session on an asyncio transport, with back-pressure in both directions."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from aegaeon_picker.transport.budget import Budget
from aegaeon_picker.transport.calls import Methods
from aegaeon_picker.transport.errors import PeerError
from aegaeon_picker.transport.limits import Clock, Reason
from aegaeon_picker.transport.rejections import Rejections
from aegaeon_picker.transport.session import Session
from aegaeon_picker.transport.turns import Turns

_KEEPALIVE_S = 60  # idle time before TCP keepalive probes, which detect lost peers and end their calls
_CLOSING_S = 5.0  # time for a closing connection to send its buffer
Lost = Callable[["Connection", bool], None]  # the connection, and true for a fault of its peer


class Connection(asyncio.Protocol):
    """The connection of a client. `lost` is called at its end."""

    def __init__(
        self,
        address: str,
        methods: Methods,
        budget: Budget,
        rejections: Rejections,
        turns: Turns,
        clock: Clock,
        lost: Lost,
    ) -> None:
        self.address = address
        self._limits, self._rejections, self._turns = budget.limits, rejections, turns
        self._clock, self._lost = clock, lost
        self._session = Session(methods, budget, rejections, address, clock, self._wake)
        self._transport: asyncio.Transport | None = None  # None before the connection is made and after it is lost
        self._reading = True
        self._blocked_since: float | None = None
        self._closing_since: float | None = None
        self._idle_since: float | None = None
        self._faulty = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer: socket.socket = transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        self._write()

    def data_received(self, data: bytes) -> None:
        if self._closing_since is not None:
            return
        try:
            self._session.add(data)
        except PeerError as fault:
            self._end(fault)
        else:
            self._offer()

    def pause_writing(self) -> None:
        self._blocked_since = self._clock()
        self._session.block()
        self._read(False)

    def resume_writing(self) -> None:
        self._blocked_since = None
        self._session.unblock()
        self._offer()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # the calls end regardless of the error
        self._transport = None
        self._session.close()
        self._lost(self, self._faulty)

    def work(self, until: float) -> bool:
        """Work until `until` (see Worker)."""
        if self._transport is None or self._closing_since is not None:
            return False
        try:
            more = self._session.work(until)
        except PeerError as fault:
            self._end(fault)
            return False
        self._write()
        if not more and self._blocked_since is None:
            self._read(True)
        return more

    def check(self) -> None:
        """End what timed out; the server calls it every second."""
        now = self._clock()
        if self._closing_since is not None:
            if now - self._closing_since > _CLOSING_S:
                self.abort()
            return
        try:
            self._session.check()
            if self._blocked_since is not None and now - self._blocked_since > self._limits.stall_s:
                raise PeerError(Reason.STALLED, "the peer does not read")
        except PeerError as fault:
            self._end(fault)
        else:
            self._check_idle(now)

    def leave(self) -> None:
        """Accept only calls that are already on their way, and close after the last one."""
        self._session.leave()
        self._write()

    def abort(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _offer(self) -> None:
        if self._turns.offer(self):
            self._read(False)

    def _wake(self) -> None:
        """Write, since a call has something to send outside of the connection's turn."""
        if self._transport is not None and self._closing_since is None:
            self._write()

    def _check_idle(self, now: float) -> None:
        if self._session.streams:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > self._limits.connection_idle_s:
            self._rejections.add("connection", Reason.IDLE, self.address, "no call within the idle timeout")
            self.leave()

    def _end(self, fault: PeerError) -> None:
        if self._closing_since is not None:
            return
        self._faulty = True
        self._rejections.add("connection", fault.reason, self.address, str(fault))
        self._session.end(fault)
        self._write()

    def _write(self) -> None:
        transport = self._transport
        if transport is None:
            return
        if data := self._session.to_send():
            transport.write(data)
        if self._session.done and self._closing_since is None:
            self._closing_since = self._clock()
            self._session.streams.close()
            transport.close()

    def _read(self, on: bool) -> None:
        if self._transport is None or on == self._reading or self._closing_since is not None:
            return
        self._reading = on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
