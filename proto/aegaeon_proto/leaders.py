"""Find the leader among a pool's schedulers: clients ask all of them and reject old terms (fencing).

A process that was cut off, paused or replaced may believe that it leads. Terms fence it off:
a client that has seen a higher term attaches to no scheduler of a lower one, and leaves one it is attached to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from aegaeon_proto.addresses import Addresses
from aegaeon_proto.channels import Options, open_channel, why
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import leadership_pb2 as pb
from aegaeon_proto.v1.leadership_pb2_grpc import LeadershipStub

CONNECT_S = 5.0
# An attached process has heard from its scheduler within the sum of both.
ASK_EVERY_S, ANSWER_S = 2.0, 4.0


class NoLeaderError(Exception):
    """Raised when no scheduler leads, or the leader is silent or was replaced; the message says which."""


@dataclass(frozen=True, slots=True)
class Leader:
    """A scheduler that leads, and the connection over which it answered."""

    target: str
    channel: grpc.aio.Channel
    term: int


class Leaders:
    """The schedulers of a pool. `seen` is the highest term that any scheduler reported."""

    def __init__(self, targets: Sequence[str], tls: Path | None, options: Options = ()) -> None:
        self._targets = tuple(targets)
        self._addresses = Addresses()
        self._tls = tls
        # Every attempt is a connection of its own: gRPC's pause between attempts must not come on top of the caller's.
        self._options = (*options, ("grpc.use_local_subchannel_pool", 1))
        self.seen = 0

    @asynccontextmanager
    async def leader(self) -> AsyncIterator[Leader]:
        """The first scheduler that leads, connected until the end of the block. Raises NoLeaderError, TlsError."""
        queries = [asyncio.create_task(self._ask(target)) for target in self._targets]
        try:
            leader = await self._first(queries)
            await _close(queries, leader)
            yield leader
        finally:
            await _close(queries)

    async def follow(self, leader: Leader, talk: Coroutine[Any, Any, None]) -> None:
        """Run `talk` until it ends. Raises what it raises, and NoLeaderError when the leader is lost before."""
        talking, watching = asyncio.create_task(talk), asyncio.create_task(self.lost(leader))
        try:
            await asyncio.wait((talking, watching), return_when=asyncio.FIRST_COMPLETED)
            for task in (talking, watching):
                if task.done():
                    task.result()
        finally:
            await _end((talking, watching))

    async def lost(self, leader: Leader) -> None:
        """Raises NoLeaderError as soon as the leader is silent, leads no more, or another one has a higher term."""
        watching = [asyncio.create_task(watch) for watch in (self._silent(leader), self._replaced(leader))]
        try:
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _end(watching)

    async def _silent(self, leader: Leader) -> None:
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            try:
                reply = await _answer(leader.channel, ANSWER_S)
            except grpc.aio.AioRpcError as error:
                raise NoLeaderError(f"{leader.target} is silent: {why(error, self._tls)}") from error
            self._take(leader.target, reply)

    async def _replaced(self, leader: Leader) -> None:
        """Asks all targets over new connections: the leader's own address may lead to another process by now."""
        while self.seen <= leader.term or not leader.term:
            await asyncio.sleep(2 * ASK_EVERY_S)
            queries = [asyncio.create_task(self._ask(target)) for target in self._targets]
            try:
                await asyncio.wait(queries, timeout=ANSWER_S)
            finally:
                await _close(queries)
        raise NoLeaderError(f"{leader.target} was replaced: term {self.seen} began, its own is {leader.term}")

    async def _first(self, queries: Sequence[asyncio.Task[Leader]]) -> Leader:
        reasons = []
        for done in asyncio.as_completed(queries):
            try:
                return await done
            except NoLeaderError as error:
                reasons.append(str(error))
        raise NoLeaderError("; ".join(reasons))

    async def _ask(self, target: str) -> Leader:
        """Ask one scheduler. The caller that receives a Leader closes its channel."""
        channel = open_channel(self._addresses.of(target), self._tls, Role.SCHEDULER, self._options)
        async with AsyncExitStack() as exits:
            await exits.enter_async_context(channel)
            try:
                reply = await _answer(channel, CONNECT_S)
            except grpc.aio.AioRpcError as error:
                raise NoLeaderError(f"{target}: {why(error, self._tls)}") from error
            self._take(target, reply)
            exits.pop_all()
        return Leader(target, channel, reply.term)

    def _take(self, target: str, reply: pb.LeaderReply) -> None:
        """Check a reply. Raises NoLeaderError when the scheduler does not lead, or its term has ended."""
        if not reply.leads:
            raise NoLeaderError(f"{target} is a standby")
        if reply.term and reply.term < self.seen:
            raise NoLeaderError(f"{target} leads in term {reply.term}, which has ended: term {self.seen} has begun")
        self.seen = max(self.seen, reply.term)


async def _answer(channel: grpc.aio.Channel, timeout_s: float) -> pb.LeaderReply:
    """Ask for leadership. Raises AioRpcError. A scheduler of a version without terms leads: such a pool has only
    one."""
    try:
        reply: pb.LeaderReply = await LeadershipStub(channel).Ask(pb.LeaderRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        return pb.LeaderReply(leads=True)
    return reply


async def _close(queries: Sequence[asyncio.Task[Leader]], but: Leader | None = None) -> None:
    """Cancel pending queries, and close the connections of schedulers that lead."""
    await _end(queries)
    for task in queries:
        if not task.cancelled() and task.exception() is None and task.result() is not but:
            await task.result().channel.close()


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
