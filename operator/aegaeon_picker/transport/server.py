"""A server port for gRPC calls."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from time import monotonic
from typing import Any

from aegaeon_picker.transport.admission import Admission
from aegaeon_picker.transport.budget import Budget
from aegaeon_picker.transport.calls import Methods
from aegaeon_picker.transport.connection import Connection
from aegaeon_picker.transport.limits import Limits, Reason
from aegaeon_picker.transport.rejections import Count, Rejections
from aegaeon_picker.transport.turns import Turns

_BACKLOG = 128
_CHECK_S = 1.0
_RETRY_S = 1.0  # after the system could not accept a connection
_TLS_CLOSE_S = 5.0


class Server:
    """A server. `count` is called for each rejection."""

    def __init__(
        self,
        methods: Methods,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        count: Count | None = None,
    ) -> None:
        self._methods, self._tls = methods, tls
        self.budget = Budget(limits or Limits())
        self.admission = Admission(self.budget.limits)
        self._count: Count = count or (lambda scope, reason: None)
        self._connections: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._none_left = asyncio.Event()
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen at an address; port 0: any free one, see `port`. Raises OSError for a used port."""
        self._loop = asyncio.get_running_loop()
        self._rejections = Rejections(self._count, monotonic)
        self._turns = Turns(self._loop.call_soon, monotonic)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()
        self._listening = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        self._tasks: list[asyncio.Task[Any]] = [
            self._loop.create_task(self._accept()),
            self._loop.create_task(self._check()),
        ]

    async def failed(self) -> None:
        """Wait until a bug ends the task that accepts connections or the task that checks them; raise its exception."""
        await asyncio.gather(*self._tasks)

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls; open calls have `grace_s` to end."""
        await _cancel([self._tasks[0], *self._connecting])
        self._listening.close()
        for connection in list(self._connections):
            connection.leave()
        if self._connections:
            self._none_left.clear()
            waiting = self._loop.create_task(self._none_left.wait())
            await asyncio.wait([waiting], timeout=grace_s)
            await _cancel([waiting])
        for connection in list(self._connections):
            connection.abort()
        await _cancel(self._tasks)

    async def _accept(self) -> None:
        while True:
            try:
                opened, address = await self._loop.sock_accept(self._listening)
            except OSError as error:  # no file descriptor left, for example
                self._rejections.add("connection", Reason.CONNECTIONS, "the system", str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            self._admit(opened, address[0])
            await asyncio.sleep(0)  # accept one connection per iteration of the loop

    def _admit(self, opened: socket.socket, address: str) -> None:
        if (reason := self.admission.enter(address, monotonic())) is not None:
            opened.close()
            self._rejections.add("connection", reason, address, "too many connections")
            return
        task = self._loop.create_task(self._connect(opened, address))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, opened: socket.socket, address: str) -> None:
        """Run the TLS handshake, if enabled; afterwards the connection handles its own end."""
        connection = Connection(
            address, self._methods, self.budget, self._rejections, self._turns, monotonic, self._lost
        )
        within_s = self.budget.limits.handshake_s if self._tls else None
        close_s = _TLS_CLOSE_S if self._tls else None
        self._connections.add(connection)
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, opened, ssl=self._tls, ssl_handshake_timeout=within_s, ssl_shutdown_timeout=close_s
            )
        except (OSError, asyncio.CancelledError) as error:
            opened.close()
            if connection in self._connections:
                self._rejections.add("connection", Reason.HANDSHAKE, address, str(error) or type(error).__name__)
                self._lost(connection, isinstance(error, OSError))
            if isinstance(error, asyncio.CancelledError):
                raise

    def _lost(self, connection: Connection, faulty: bool) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self.admission.leave(connection.address, faulty, monotonic())
        if not self._connections:
            self._none_left.set()

    async def _check(self) -> None:
        """Check the timeouts of all connections in one task."""
        while True:
            await asyncio.sleep(_CHECK_S)
            self.admission.forget(monotonic())
            for connection in list(self._connections):
                connection.check()
                await asyncio.sleep(0)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
