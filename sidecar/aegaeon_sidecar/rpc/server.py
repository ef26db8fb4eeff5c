"""The sidecar's side of Attach: it dials the scheduler, sends Hello, receives commands and sends reports, with retries.

While the stream is broken the engine works off the commands that it has. If the scheduler is unavailable for longer
than the lease, the sidecar swaps KV out to the host tier and keeps it there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import grpc

from aegaeon_proto.certificates import TlsError
from aegaeon_proto.channels import why
from aegaeon_proto.codec.commands import command_from
from aegaeon_proto.codec.reports import report_to
from aegaeon_proto.engine.ids import InstanceId
from aegaeon_proto.engine.reports import InstanceDraining
from aegaeon_proto.leaders import Leader, Leaders, NoLeaderError
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import engine_pb2_grpc as rpc
from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.engine.engine import Engine
from aegaeon_sidecar.engine.outbox import Outbox
from aegaeon_sidecar.rpc.backoff import CHANNEL_OPTIONS, Backoff

log = logging.getLogger(__name__)

Call = grpc.aio.StreamStreamCall[pb.Reports, pb.Commands]
_BATCH = 64  # reports of one message


class Attachment:
    """Keeps one sidecar attached to its scheduler."""

    def __init__(self, engine: Engine, outbox: Outbox, config: SidecarConfig) -> None:
        self._engine = engine
        self._outbox = outbox
        self._instance = InstanceId(config.instance)
        self._leaders = Leaders((config.scheduler, *config.standbys), config.tls, CHANNEL_OPTIONS)
        self._tls = config.tls
        self._lease_s = config.lease_s
        self._heartbeat_s = config.heartbeat_s
        self._number = 0
        self._draining = False
        self._attached = False
        self._lease_ends: float | None = None  # when KV is parked, by the loop's clock; None with a scheduler
        self._lease: asyncio.TimerHandle | None = None  # until then; None from Hello on, until the stream breaks
        self._backoff = Backoff()
        self._ended = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Attached, and not about to end."""
        return self._attached and not self._draining

    def drain(self) -> None:
        """Tell the scheduler, and every later one, that this sidecar is about to end."""
        self._draining = True
        self._outbox.post(InstanceDraining(self._instance))

    async def leave(self, timeout_s: float) -> None:
        """Write what is queued and end the stream in good order; one that is broken needs none."""
        self._outbox.close()
        if self._attached:
            waiting = asyncio.ensure_future(self._ended.wait())
            await asyncio.wait([waiting], timeout=timeout_s)
            waiting.cancel()

    async def run(self) -> None:
        """Attach again and again until cancelled."""
        try:
            while True:
                await self._attempt()
                if self._outbox.closed:
                    return
                self._begin_lease()
                await self._backoff.pause()
        finally:
            self._end_lease()
            self._ended.set()

    async def _attempt(self) -> None:
        try:
            async with self._leaders.leader() as leader:
                await self._attach(leader)
        except grpc.aio.AioRpcError as error:
            log.info("scheduler %s is unavailable (%s); trying again", leader.target, why(error, self._tls))
        except (NoLeaderError, TlsError) as error:
            log.warning("no scheduler: %s", error)
        finally:
            self._attached = False
            self._outbox.end()

    def _begin_lease(self) -> None:
        """Park KV when the lease is over: it began when the scheduler was lost, and refusals do not begin it anew."""
        loop = asyncio.get_running_loop()
        if self._lease_ends is None:
            self._lease_ends = loop.time() + self._lease_s
        if self._lease is None:
            self._lease = loop.call_at(self._lease_ends, self._engine.park)

    def _hold_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
        self._lease = None

    def _end_lease(self) -> None:
        self._hold_lease()
        self._lease_ends = None

    async def _attach(self, leader: Leader) -> None:
        """One attachment, until its stream breaks or the scheduler leads no more."""
        self._hold_lease()  # KV that is parked behind Hello is not where the scheduler believes it to be
        await asyncio.to_thread(self._engine.quiesce)
        self._number += 1
        call: Call = rpc.EngineStub(leader.channel).Attach()
        hello = self._engine.hello(self._number)
        self._attached = True  # before the scheduler can know, who may ask at once
        await _write(call, [report_to(hello)])
        if self._draining:
            self._outbox.post(InstanceDraining(self._instance))
        tasks = [
            asyncio.create_task(work, name=name)
            for name, work in (
                ("commands", self._commands(call, self._number, leader)),
                ("reports", self._reports(call)),
                ("heartbeats", self._heartbeats()),
                ("host cache", self._host_cache()),
                ("leader", self._leaders.lost(leader)),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            call.cancel()

    async def _commands(self, call: Call, number: int, leader: Leader) -> None:
        welcome = False
        async for message in call:
            if not welcome:  # one that refuses this sidecar sends nothing; it is as if there were none
                welcome = True
                log.info("attached to %s", leader.target)
                self._end_lease()
                self._backoff = Backoff()
            for command in message.commands:
                self._engine.apply(command_from(command), number)

    async def _reports(self, call: Call) -> None:
        async for batch in self._outbox.batches(_BATCH):
            await _write(call, map(report_to, batch))
        await call.done_writing()
        await call.code()

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await asyncio.to_thread(self._engine.heartbeat)

    async def _host_cache(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            if (changed := await asyncio.to_thread(self._engine.host_cache)) is not None:
                self._outbox.post(changed)


async def _write(call: Call, reports: Iterable[pb.Report]) -> None:
    """Raises AioRpcError, also where the stream is over already, which grpc takes for a mistake of the caller."""
    try:
        await call.write(pb.Reports(reports=reports))
    except asyncio.InvalidStateError:
        metadata = await call.initial_metadata(), await call.trailing_metadata()
        raise grpc.aio.AioRpcError(await call.code(), *metadata, await call.details()) from None
