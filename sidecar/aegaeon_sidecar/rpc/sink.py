"""Sends tokens to the gateways: one connection per gateway; every batch is kept until it is acknowledged.

`push` only appends, so the compute lane never waits for the network. A broken connection is made again with growing
backoff and repeats unacknowledged batches. The gateway orders tokens by index, so duplicates are harmless.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path

from aegaeon_proto.certificates import TlsError
from aegaeon_proto.codec.tokens import token_to
from aegaeon_proto.engine.tokens import Token
from aegaeon_proto.frames import dial, frame, read_frame, why_closed
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_sidecar.rpc.backoff import Backoff

log = logging.getLogger(__name__)

_BATCH_TOKENS = 1024
_BATCH_LARGE_BYTES = 1 << 20  # of embeddings and logprobs of prompts, which are much larger than tokens
_SILENT_S = 5.0  # a gateway that acknowledges nothing for so long is dialled again


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
        self._lock = threading.Lock()  # no sink is dropped between its look-up and the tokens that it is given
        self._sinks: dict[str, _Sink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def push(self, target: str, tokens: list[Token]) -> None:
        """Queue tokens for a gateway. Any thread; waits for no network."""
        if target and tokens:
            with self._lock:
                sink = self._sinks.setdefault(target, _Sink(self._instance, target, self._tls, self._loop))
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
        if self._sinks.get(sink.target) is not sink:
            return  # given up meanwhile
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
            except OSError as error:
                log.info("gateway %s: %s; its tokens are kept", sink.target, why_closed(error, self._tls))
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
        with self._lock:
            if sink.pending and self._loop.time() - away_since < self._keep_s:
                return False
            del self._sinks[sink.target], self._tasks[sink.target]
        sink.drained.set()
        return True


class _Sink:
    """One gateway: `fresh` is filled by the compute lane, everything else belongs to the event loop."""

    def __init__(self, instance: str, target: str, tls: Path | None, loop: asyncio.AbstractEventLoop) -> None:
        self.target = target
        self._loop = loop
        self._heard_at = 0.0
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
        """One connection until it breaks. Raises OSError and TlsError; returns when the gateway ends it."""
        reader, writer = await dial(self.target, self._tls, Role.GATEWAY)
        tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (self._acknowledgements(reader), self._batches(writer), self._until_silent())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.transport.abort()
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, OSError):
                raise error
            if error is not None and not isinstance(error, EOFError):  # of a gateway that stops
                log.error("gateway %s: its tokens are kept, but not sent: a defect", self.target, exc_info=error)

    async def _acknowledgements(self, reader: asyncio.StreamReader) -> None:
        while True:
            ack = await read_frame(reader, pb.TokenAck)
            self.acked_any = True
            self._heard_at = self._loop.time()
            while self.unacked and next(iter(self.unacked)) <= ack.number:
                self.unacked.popitem(last=False)
            if not self.pending:
                self.drained.set()

    async def _until_silent(self) -> None:
        """Raises TimeoutError: its host is lost or it hangs, though the connection is there."""
        self._heard_at = self._loop.time()
        while self._loop.time() - self._heard_at < _SILENT_S:
            await asyncio.sleep(_SILENT_S / 5)
            if not self.unacked:
                self._heard_at = self._loop.time()
        raise TimeoutError(errno.ETIMEDOUT, f"it has acknowledged nothing for {_SILENT_S:g} s")

    async def _batches(self, writer: asyncio.StreamWriter) -> None:
        again = list(self.unacked.values())
        self.unacked.clear()
        numbers = itertools.count(1)
        for old in again:
            old.number = next(numbers)
            self.unacked[old.number] = old
        for old in again:
            writer.write(frame(old))
            await writer.drain()
        while True:
            while (batch := self._gather()) is not None:
                batch.number = next(numbers)
                self.unacked[batch.number] = batch
                writer.write(frame(batch))
                await writer.drain()
            await self.filled.wait()

    def _gather(self) -> pb.TokenBatch | None:
        """Everything fresh in one batch, up to a bound; None when there is nothing."""
        self.filled.clear()
        self.woken = False
        tokens: list[pb.Token] = []
        large = 0
        while self.fresh and len(tokens) < _BATCH_TOKENS and large < _BATCH_LARGE_BYTES:
            made = [*map(token_to, self.fresh[0])]
            tokens += made
            large += sum(token.ByteSize() for token in made if token.pooled or token.prompt)
            self.fresh.popleft()  # only now: what cannot be encoded is not lost
        return pb.TokenBatch(instance=self._instance, tokens=tokens) if tokens else None
