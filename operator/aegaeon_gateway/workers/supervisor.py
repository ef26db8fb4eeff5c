"""The gateway's supervisor of its fork server: starts it, starts it again, and keeps models loaded in it.

A fork server that ends takes what it had loaded with it; the folders of the models stay known here, and each is loaded
again when it is needed next.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aegaeon_gateway.errors import TextDroppedError, TokenizerError, UnavailableError, WireError, overloaded
from aegaeon_gateway.workers.client import Control, Worker
from aegaeon_gateway.workers.wire import Drop, Failed, Limit, Load, Loaded, Order, Spawn

_LOAD = Limit(cpu_s=15.0, memory_bytes=2 << 30)
_LOAD_WALL_S = 120.0
_GRAMMARS = 8  # models whose grammars can be compiled: 100 MB each for 128,000 tokens

Stopped = Callable[[], Awaitable[None]]
Starter = Callable[[socket.socket], Awaitable[Stopped]]
"""Starts a fork server on a socket; what it returns waits for the process' end, which follows the socket's."""


async def start_process(sock: socket.socket) -> Stopped:
    """The fork server as a program of its own, so that it shares no memory, thread or lock with the gateway."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aegaeon_gateway.workers", str(sock.fileno()), pass_fds=[sock.fileno()]
    )

    async def stopped() -> None:
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    return stopped


class Supervisor:
    """Owner of the fork server's process. `renewed`: workers of an earlier `generation` do not know all models, or have
    no fork server for more."""

    def __init__(self, start: Starter, renewed: Callable[[], None]) -> None:
        self._start = start
        self._renewed = renewed
        self.generation = 0
        self._control: Control | None = None
        self._stopped: Stopped | None = None
        self._folders: dict[bytes, str] = {}
        self._present: set[bytes] = set()
        self._starting = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._dropped_late: set[bytes] = set()
        self._reloading: dict[bytes, asyncio.Task[None]] = {}
        self._grammars: dict[bytes, None] = {}  # models whose grammars were read, the first of them first
        self._reading: dict[bytes, asyncio.Task[None]] = {}

    @property
    def control(self) -> Control | None:
        """The socket to the fork server that runs, if any."""
        return self._control

    async def start(self) -> Control:
        """Start the fork server, unless it runs."""
        async with self._starting:
            if self._control is not None:
                return self._control
            own_end, child_end = socket.socketpair()
            own_end.setblocking(False)
            with child_end:
                self._stopped = await self._start(child_end)
            self._control = Control(own_end)
            self.generation += 1
            return self._control

    async def load(self, key: bytes, directory: str) -> tuple[Loaded, bytes]:
        """The text of a model, from a folder: what the gateway needs of it. Raises TokenizerError, UnavailableError."""
        async with self._loading:
            self._folders[key] = directory
            return await self._ask(Load(key, directory, _LOAD))

    def drop(self, key: bytes) -> None:
        """Forget a model."""
        self._folders.pop(key, None)
        self._present.discard(key)
        self._grammars.pop(key, None)
        if self._loading.locked():
            self._dropped_late.add(key)  # the fork that is loading has it still, and may take over
        with suppress(WireError):
            self._order(Drop(key))

    async def ensure(self, key: bytes) -> None:
        """Load what a fork server that has ended had loaded. Raises UnavailableError, TokenizerError."""
        if key not in self._present:
            task = self._reloading.get(key) or asyncio.create_task(self._reload(key))
            self._reloading[key] = task
            await asyncio.shield(task)  # others may wait for it too

    async def read_grammars(self, key: bytes) -> None:
        """Have the model's grammars read; others' requests go on. Raises UnavailableError, TokenizerError."""
        task = self._reading.get(key) or asyncio.create_task(self._read_grammars(key))
        self._reading[key] = task
        await asyncio.shield(task)  # others may wait for it too

    def spawn(self, spawn: Spawn) -> Worker:
        """A worker, forked. Raises WireError."""
        own_end, child_end = socket.socketpair()
        own_end.setblocking(False)
        try:
            with child_end:
                self._order(spawn, child_end)
        except WireError:
            own_end.close()
            raise
        return Worker(own_end, self.generation)

    async def end(self, control: Control | None) -> None:
        """End this fork server, unless another caller has: then another one may run already."""
        if control is None or control is not self._control:
            return
        self._control = None
        self._present.clear()
        self._renew()
        control.close()
        if (stopped := self._stopped) is not None:
            self._stopped = None
            await stopped()

    async def _reload(self, key: bytes) -> None:
        try:
            async with self._loading:
                if key in self._present:
                    return
                if (folder := self._folders.get(key)) is None:
                    raise TextDroppedError
                await self._ask(Load(key, folder, _LOAD, grammars=key in self._grammars))
        finally:
            del self._reloading[key]

    async def _read_grammars(self, key: bytes) -> None:
        try:
            async with self._loading:
                if (folder := self._folders.get(key)) is None:
                    raise TextDroppedError
                await self._ask(Load(key, folder, _LOAD, grammars=True))
                self._grammars[key] = None
                while len(self._grammars) > _GRAMMARS:
                    oldest = next(iter(self._grammars))
                    del self._grammars[oldest]
                    self._order(Drop(oldest, grammars=True))
        finally:
            del self._reading[key]

    async def _ask(self, load: Load) -> tuple[Loaded, bytes]:
        """When it succeeds, a fork of the fork server has taken its place. Raises UnavailableError, TokenizerError."""
        control = await self.start()
        try:
            control.order(load)
            async with asyncio.timeout(_LOAD_WALL_S):
                answer, tail = await control.receive()
        except (WireError, TimeoutError) as error:
            await self.end(control)
            raise restarting() from error
        except asyncio.CancelledError:
            await self.end(control)  # its answer would be taken for that of the next
            raise
        if isinstance(answer, Failed):
            raise TokenizerError(answer.reason)
        if not isinstance(answer, Loaded):
            raise TypeError(f"the fork server answers with {type(answer).__name__}")
        self._present.add(load.key)
        self._renew()
        self._drop_late()
        return answer, tail

    def _drop_late(self) -> None:
        late, self._dropped_late = self._dropped_late - self._folders.keys(), set()
        with suppress(WireError):
            for key in late:
                self._order(Drop(key))

    def _order(self, order: Order, *sockets: socket.socket) -> None:
        """Raises WireError when there is no fork server."""
        if self._control is None:
            raise WireError("no fork server runs")
        self._control.order(order, *sockets)

    def _renew(self) -> None:
        self.generation += 1
        self._renewed()


def restarting() -> UnavailableError:
    """The answer to a request that meets the end of the fork server."""
    return overloaded("The gateway's workers are being started anew; try again.")
