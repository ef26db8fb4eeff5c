"""The gateway's workers: one fork server, a lane for small requests and one for what may take long.

A small body is tried in the first lane, whose limit is so short that a hostile one is not noticed. What exceeds it goes
to the second, at the lowest priority and with a fresh process for each job, and so does all of its model for a while.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from aegaeon_gateway.errors import (
    InvalidRequestError,
    QueueFullError,
    TokenizerError,
    UnavailableError,
    WireError,
    overloaded,
)
from aegaeon_gateway.workers.client import Control, Worker
from aegaeon_gateway.workers.fair import Share
from aegaeon_gateway.workers.lane import Lane, LaneConfig
from aegaeon_gateway.workers.wire import (
    Done,
    Drop,
    Exceeded,
    Failed,
    Job,
    Limit,
    Load,
    Loaded,
    Missing,
    Order,
    Peek,
    Peeked,
    Refused,
    Reply,
    Spawn,
)

log = logging.getLogger(__name__)

FAST_BODY_BYTES = 64 << 10
"""a larger body is not tried in the first lane"""
_FAST = Limit(cpu_s=0.5, memory_bytes=256 << 20)
_LOAD = Limit(cpu_s=15.0, memory_bytes=2 << 30)
_LOAD_WALL_S = 120.0
_SLOW_S = 60.0
_BUSY = "Too many requests wait to be tokenized; try again."

Stopped = Callable[[], Awaitable[None]]
Starter = Callable[[socket.socket], Awaitable[Stopped]]
"""Starts a fork server on a socket; what it returns waits for the process' end, which follows the socket's."""


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """`workers` in each lane; `job` is the second lane's limit, `wall_s` its longest wait for a worker's answer."""

    workers: int
    job: Limit
    wall_s: float


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


class WorkerPool:
    """Owner of the fork server and its workers. A fork server that ends is started anew when it is needed next."""

    def __init__(self, config: PoolConfig, start: Starter = start_process) -> None:
        self._config = config
        self._start = start
        self._control: Control | None = None
        self._stopped: Stopped | None = None
        self._generation = 0
        self._folders: dict[bytes, str] = {}
        self._present: set[bytes] = set()
        self._starting = asyncio.Lock()
        self._loading = asyncio.Lock()
        self._dropped_late: set[bytes] = set()
        self._reloading: dict[bytes, asyncio.Task[None]] = {}
        self._slow_until: dict[bytes, float] = {}
        fast = LaneConfig(config.workers, _FAST, config.wall_s, once=False, low=False)
        bulk = LaneConfig(config.workers, config.job, config.wall_s, once=True, low=True)
        self._fast, self._bulk = (Lane(lane, self._spawn, lambda: self._generation) for lane in (fast, bulk))

    # ---- what the gateway asks for ---------------------------------------------------------------------------------

    async def start(self) -> Control:
        """Start the fork server, unless it runs."""
        async with self._starting:
            if self._control is not None:
                return self._control
            here, there = socket.socketpair()
            here.setblocking(False)
            with there:
                self._stopped = await self._start(there)
            self._control = Control(here)
            self._generation += 1
            return self._control

    async def stop(self) -> None:
        """End all processes."""
        await asyncio.gather(self._fast.stop(), self._bulk.stop())
        await self._end(self._control)

    async def load(self, key: bytes, directory: str) -> tuple[Loaded, bytes]:
        """The text of a model, from a folder: what the gateway needs of it. Raises TokenizerError, UnavailableError."""
        async with self._loading:
            self._folders[key] = directory
            return await self._ask(Load(key, directory, _LOAD))

    def drop(self, key: bytes) -> None:
        """Forget a model."""
        self._folders.pop(key, None)
        self._slow_until.pop(key, None)
        self._present.discard(key)
        if self._loading.locked():
            self._dropped_late.add(key)  # the fork that is loading has it still, and may take over
        with suppress(WireError):
            self._order(Drop(key))

    async def model_of(self, owner: str, body: bytes | bytearray) -> str:
        """The model that a large body names. Raises ApiError."""
        reply, _ = await self._do(self._bulk, Share(owner, f"\0{owner}"), Peek(), body)
        if isinstance(reply, Peeked):
            return reply.model
        raise _refusal(reply, self._config.job)

    async def prepare(self, owner: str, job: Job, body: bytes | bytearray) -> tuple[Done, bytes]:
        """What is to be submitted, and the token ids of its prompts.

        Raises ApiError, and TokenizerError when the model has to be loaded from its source again.
        """
        await self._ensure(job.key)
        share = Share(owner, job.model)
        if len(body) <= FAST_BODY_BYTES and self._slow_until.get(job.key, 0.0) < time.monotonic():
            reply, tail = await self._do(self._fast, share, job, body)
            if isinstance(reply, Exceeded):
                log.warning("%s: a small request exceeded its limit; it goes to the slow lane", job.model)
                self._slow_until[job.key] = time.monotonic() + _SLOW_S
        else:
            reply = Exceeded("")
        if isinstance(reply, Exceeded):
            reply, tail = await self._do(self._bulk, share, job, body)
        if isinstance(reply, Done):
            return reply, tail
        if isinstance(reply, Missing):
            raise _restarting()
        raise _refusal(reply, self._config.job)

    # ---- the fork server -------------------------------------------------------------------------------------------

    async def _ensure(self, key: bytes) -> None:
        """Load what a fork server that has ended had loaded. Raises UnavailableError, TokenizerError."""
        if key not in self._present:
            task = self._reloading.get(key) or asyncio.create_task(self._reload(key))
            self._reloading[key] = task
            await asyncio.shield(task)  # others may wait for it too

    async def _reload(self, key: bytes) -> None:
        try:
            async with self._loading:
                if key in self._present:
                    return
                if (folder := self._folders.get(key)) is None:
                    raise _restarting()  # the catalog does not serve it any more, or again since a moment ago
                await self._ask(Load(key, folder, _LOAD))
        finally:
            del self._reloading[key]

    async def _ask(self, load: Load) -> tuple[Loaded, bytes]:
        """When it succeeds, a fork of the fork server has taken its place. Raises UnavailableError, TokenizerError."""
        control = await self.start()
        try:
            control.order(load)
            async with asyncio.timeout(_LOAD_WALL_S):
                answer, tail = await control.receive()
        except (WireError, TimeoutError) as error:
            await self._end(control)
            raise _restarting() from error
        except asyncio.CancelledError:
            await self._end(control)  # its answer would be taken for that of the next
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

    def _spawn(self, spawn: Spawn) -> Worker:
        """Raises WireError."""
        here, there = socket.socketpair()
        here.setblocking(False)
        try:
            with there:
                self._order(spawn, there)
        except WireError:
            here.close()
            raise
        return Worker(here, self._generation)

    def _renew(self) -> None:
        """The workers of now do not know all models, or have no fork server for more."""
        self._generation += 1
        self._fast.refresh()
        self._bulk.refresh()

    async def _end(self, control: Control | None) -> None:
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

    # ---- jobs --------------------------------------------------------------------------------------------------------

    async def _do(self, lane: Lane, share: Share, message: Job | Peek, body: bytes | bytearray) -> tuple[Reply, bytes]:
        """Once more when the fork server has ended. Raises UnavailableError."""
        control = self._control
        try:
            return await self._try(lane, share, message, body)
        except WireError as error:
            log.warning("the fork server has ended: %s", error)
            await self._end(control)
        try:
            if isinstance(message, Job):
                await self._ensure(message.key)
            else:
                await self.start()
            return await self._try(lane, share, message, body)
        except WireError as error:
            raise _restarting() from error

    async def _try(self, lane: Lane, share: Share, message: Job | Peek, body: bytes | bytearray) -> tuple[Reply, bytes]:
        try:
            return await lane.do(share, message, body)
        except QueueFullError:
            raise overloaded(_BUSY) from None
        except TimeoutError:
            raise overloaded("Tokenizing this request took too long; try again.", 5.0) from None


def _restarting() -> UnavailableError:
    return overloaded("The gateway's workers are being started anew; try again.")


def _refusal(reply: Reply, limit: Limit) -> InvalidRequestError:
    if isinstance(reply, Refused):
        return InvalidRequestError(reply.message, param=reply.param, code=reply.code)
    if not isinstance(reply, Exceeded):
        raise TypeError(f"a worker answers with {type(reply).__name__}")
    bounds = f"{limit.cpu_s:g} s of CPU time or {limit.memory_bytes >> 20} MiB of memory"
    if reply.stage == "rendering":
        message = f"The model's chat template takes more than {bounds} for these messages."
        return InvalidRequestError(message, param="messages", code="chat_template")
    message = f"Rendering and tokenizing this request takes more than {bounds}; send less."
    return InvalidRequestError(message, code="request_too_costly")
