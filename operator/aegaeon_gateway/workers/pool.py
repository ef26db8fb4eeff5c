"""The gateway's workers: one fork server, a lane for small requests and one for what may take long.

A small body is tried in the first lane, whose limit is so short that a hostile one is not noticed. What exceeds it goes
to the second, at the lowest priority and with a fresh process for each job, and so does all of its model for a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from aegaeon_gateway.errors import InvalidRequestError, QueueFullError, TextDroppedError, WireError, overloaded
from aegaeon_gateway.workers.fair import Share
from aegaeon_gateway.workers.lane import Lane, LaneConfig
from aegaeon_gateway.workers.supervisor import Starter, Supervisor, restarting, start_process
from aegaeon_gateway.workers.wire import (
    Answered,
    Done,
    Exceeded,
    Job,
    Limit,
    Loaded,
    Missing,
    NeedsGrammars,
    Peek,
    Peeked,
    Refused,
    Reply,
)

log = logging.getLogger(__name__)

FAST_BODY_BYTES = 64 << 10
"""a larger body is not tried in the first lane"""
_FAST = Limit(cpu_s=0.5, memory_bytes=256 << 20)
_SLOW_S = 60.0
_BUSY = "Too many requests wait to be tokenized; try again."


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """`workers` in each lane; `job` is the second lane's limit, `wall_s` its longest wait for a worker's answer."""

    workers: int
    job: Limit
    wall_s: float


class WorkerPool:
    """Owner of the fork server and its workers. A fork server that ends is started anew when it is needed next."""

    def __init__(self, config: PoolConfig, start: Starter = start_process) -> None:
        self._config = config
        self._slow_until: dict[bytes, float] = {}
        self._supervisor = Supervisor(start, self._refresh)
        # A small job takes a millisecond: a burst of an agent's or a benchmark's requests waits for less than a second.
        fast = LaneConfig(config.workers, _FAST, config.wall_s, once=False, low=False, waiting=4096, waiting_each=1024)
        bulk = LaneConfig(
            config.workers, config.job, config.wall_s, once=True, low=True, waiting=1024, waiting_each=128
        )
        self._fast, self._bulk = (Lane(lane, self._supervisor.spawn, self._generation) for lane in (fast, bulk))

    # ---- what the gateway asks for ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the fork server, unless it runs."""
        await self._supervisor.start()

    async def stop(self) -> None:
        """End all processes."""
        await asyncio.gather(self._fast.stop(), self._bulk.stop())
        await self._supervisor.end(self._supervisor.control)

    async def load(self, key: bytes, directory: str) -> tuple[Loaded, bytes]:
        """The text of a model, from a folder: what the gateway needs of it. Raises TokenizerError, UnavailableError."""
        return await self._supervisor.load(key, directory)

    def drop(self, key: bytes) -> None:
        """Forget a model."""
        self._slow_until.pop(key, None)
        self._supervisor.drop(key)

    async def names_of(self, owner: str, body: bytes | bytearray) -> tuple[str, str]:
        """The model that a large body names, and the response that it goes on with or "". Raises ApiError."""
        reply, _ = await self._do(self._bulk, Share(owner, f"\0{owner}"), Peek(), body)
        if isinstance(reply, Peeked):
            return reply.model, reply.previous
        raise _refusal(reply, self._config.job)

    async def prepare(self, owner: str, job: Job, body: bytes | bytearray) -> tuple[Done, bytes]:
        """Make the submission of a body, and the token ids of its prompts.

        Raises ApiError, and TokenizerError when the model has to be loaded from its source again.
        """
        reply, tail = await self._done(owner, job, body)
        if not isinstance(reply, Done):
            raise _refusal(reply, self._config.job)
        return reply, tail

    async def answer(self, owner: str, job: Job, body: bytes | bytearray) -> tuple[Answered, bytes]:
        """An answer that needs no engine, with its body. Raises as `prepare` does."""
        reply, tail = await self._done(owner, job, body)
        if not isinstance(reply, Answered):
            raise _refusal(reply, self._config.job)
        return reply, tail

    async def _done(self, owner: str, job: Job, body: bytes | bytearray) -> tuple[Reply, bytes]:
        reply, tail = await self._loaded(owner, job, body)
        if isinstance(reply, NeedsGrammars):
            await self._supervisor.read_grammars(job.key)
            reply, tail = await self._loaded(owner, job, body)
        if isinstance(reply, Missing | NeedsGrammars):
            raise TextDroppedError
        return reply, tail

    async def _loaded(self, owner: str, job: Job, body: bytes | bytearray) -> tuple[Reply, bytes]:
        await self._supervisor.ensure(job.key)
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
        return reply, tail

    # ---- jobs --------------------------------------------------------------------------------------------------------

    def _generation(self) -> int:
        return self._supervisor.generation

    def _refresh(self) -> None:
        self._fast.refresh()
        self._bulk.refresh()

    async def _do(self, lane: Lane, share: Share, message: Job | Peek, body: bytes | bytearray) -> tuple[Reply, bytes]:
        """Once more when the fork server has ended. Raises UnavailableError."""
        control = self._supervisor.control
        try:
            return await self._try(lane, share, message, body)
        except WireError as error:
            log.warning("the fork server has ended: %s", error)
            await self._supervisor.end(control)
        try:
            if isinstance(message, Job):
                await self._supervisor.ensure(message.key)
            else:
                await self._supervisor.start()
            return await self._try(lane, share, message, body)
        except WireError as error:
            raise restarting() from error

    async def _try(self, lane: Lane, share: Share, message: Job | Peek, body: bytes | bytearray) -> tuple[Reply, bytes]:
        try:
            return await lane.do(share, message, body)
        except QueueFullError:
            raise overloaded(_BUSY) from None
        except TimeoutError:
            raise overloaded("Tokenizing this request took too long; try again.", 5.0) from None


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
