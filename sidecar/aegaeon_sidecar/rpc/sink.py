"""Sends tokens to the gateways: one Push stream per gateway; every batch is kept until it is acknowledged.

`push` only appends, so the compute lane never waits for the network. A broken stream is opened again with growing
backoff and repeats unacknowledged batches. The gateway orders tokens by index, so duplicates are harmless.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

import grpc

from aegaeon_proto.channels import TlsError, open_channel, why
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import gateway_pb2_grpc as rpc
from aegaeon_sidecar.domain.reports import Token
from aegaeon_sidecar.rpc.backoff import CHANNEL_OPTIONS, Backoff
from aegaeon_sidecar.rpc.codec.tokens import token_to

log = logging.getLogger(__name__)

_BATCH_TOKENS = 1024
_BATCH_POOLED_BYTES = 1 << 20  # of embeddings, which are much larger than tokens
Call = grpc.aio.StreamStreamCall[pb.TokenBatch, pb.TokenAck]


class Sinks:
    """All gateways. `replies_to(target)` says whether a sequence still answers to one; if not, a gateway that stays
    away for `keep_s` is given up with its tokens."""

    def __init__(
        self,
        instance: str,
        loop: asyncio.AbstractEventLoop,
        replies_to: Callable[[str], bool],
        keep_s: float = 60.0,
        tls: Path | None = None,
    ) -> None:
        self._instance = instance
        self._loop = loop
        self._replies_to = replies_to
        self._tls = tls
        self._keep_s = keep_s
        self._sinks: dict[str, _Sink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def push(self, target: str, tokens: list[Token]) -> None:
        """Queue tokens for a gateway. Any thread; never blocks."""
        if target and tokens:
            sink = self._sinks.setdefault(target, _Sink(self._instance, target, self._tls))
            sink.fresh.append(tokens)
            if not sink.woken:
                sink.woken = True
                self._loop.call_soon_threadsafe(self._wake, sink)

    @property
    def pending(self) -> int:
        """Batches and steps whose tokens are not acknowledged yet."""
        return sum(sink.pending for sink in self._sinks.values())

    async def flush(self, timeout_s: float) -> None:
        """Give what is pending so long to be acknowledged (or given up)."""
        busy = [asyncio.ensure_future(sink.drained.wait()) for sink in self._sinks.values() if sink.pending]
        if busy:
            _, late = await asyncio.wait(busy, timeout=timeout_s)
            for waiter in late:
                waiter.cancel()

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _wake(self, sink: _Sink) -> None:
        sink.filled.set()
        sink.drained.clear()
        if sink.target not in self._tasks:
            self._tasks[sink.target] = self._loop.create_task(self._serve(sink), name=f"sink {sink.target}")

    async def _serve(self, sink: _Sink) -> None:
        backoff = Backoff()
        away_since = self._loop.time()
        while True:
            try:
                await sink.stream()
            except grpc.aio.AioRpcError as error:
                log.info("gateway %s: %s; its tokens are kept", sink.target, why(error, self._tls))
            except TlsError as error:
                log.warning("gateway %s: %s; its tokens are kept", sink.target, error)
            if sink.acked_any:
                sink.acked_any = False
                backoff, away_since = Backoff(), self._loop.time()
            if self._given_up(sink, away_since):
                return
            await backoff.pause()

    def _given_up(self, sink: _Sink, away_since: float) -> bool:
        if self._replies_to(sink.target):
            return False
        if (sink.fresh or sink.unacked) and self._loop.time() - away_since < self._keep_s:
            return False
        del self._sinks[sink.target], self._tasks[sink.target]
        sink.drained.set()
        return True


class _Sink:
    """One gateway: `fresh` is filled by the compute lane, everything else belongs to the event loop."""

    def __init__(self, instance: str, target: str, tls: Path | None) -> None:
        self.target = target
        self._tls = tls
        self.fresh: deque[list[Token]] = deque()
        self.unacked: OrderedDict[int, pb.TokenBatch] = OrderedDict()
        self.filled = asyncio.Event()
        self.drained = asyncio.Event()
        self.woken = False
        self.acked_any = False
        self._instance = instance

    @property
    def pending(self) -> int:
        """Steps and batches whose tokens are not acknowledged."""
        return len(self.fresh) + len(self.unacked)

    async def stream(self) -> None:
        """One Push stream until it breaks. Raises AioRpcError; returns when the gateway ends it."""
        async with open_channel(self.target, self._tls, Role.GATEWAY, CHANNEL_OPTIONS) as channel:
            call: Call = rpc.TokenSinkStub(channel).Push()
            reader = asyncio.create_task(self._acknowledgements(call))
            writer = asyncio.create_task(self._batches(call))
            try:
                await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (reader, writer):
                    task.cancel()
                await asyncio.gather(reader, writer, return_exceptions=True)
                call.cancel()
            for task in (reader, writer):
                error = None if task.cancelled() else task.exception()
                if isinstance(error, grpc.aio.AioRpcError):
                    raise error
                if error is not None and not isinstance(error, asyncio.InvalidStateError):  # the call is over already
                    log.error("gateway %s: its tokens are kept, but not sent: a defect", self.target, exc_info=error)

    async def _acknowledgements(self, call: Call) -> None:
        async for ack in call:
            self.acked_any = True
            while self.unacked and next(iter(self.unacked)) <= ack.number:
                self.unacked.popitem(last=False)
            if not self.pending:
                self.drained.set()

    async def _batches(self, call: Call) -> None:
        again = list(self.unacked.values())
        self.unacked.clear()
        numbers = itertools.count(1)
        for old in again:
            old.number = next(numbers)
            self.unacked[old.number] = old
        for old in again:
            await call.write(old)
        while True:
            while (batch := self._gather()) is not None:
                batch.number = next(numbers)
                self.unacked[batch.number] = batch
                await call.write(batch)
            await self.filled.wait()

    def _gather(self) -> pb.TokenBatch | None:
        """Everything fresh in one batch, up to a bound; None when there is nothing."""
        self.filled.clear()
        self.woken = False
        tokens: list[pb.Token] = []
        pooled = 0
        while self.fresh and len(tokens) < _BATCH_TOKENS and pooled < _BATCH_POOLED_BYTES:
            tokens += map(token_to, self.fresh[0])
            pooled += sum(len(token.pooled) for token in self.fresh[0])
            self.fresh.popleft()  # only now: what cannot be encoded is not lost
        return pb.TokenBatch(instance=self._instance, tokens=tokens) if tokens else None
