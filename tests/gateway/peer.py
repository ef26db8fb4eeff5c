"""The rest of a pool in one process: it speaks Frontend as the scheduler does, pushes tokens as a sidecar does, and
misbehaves on request.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from aegaeon_proto.frames import dial, frame, read_frame
from aegaeon_proto.roles import Role
from aegaeon_proto.servers import make_server
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2
from aegaeon_proto.v1.gateway_pb2_grpc import FrontendServicer, add_FrontendServicer_to_server


@dataclass
class Peer(FrontendServicer):
    """`say(submit, choice)` is the whole output of a choice; what is not in its prefix is pushed to the sink.

    `serve_tokens` False holds the tokens back; `push` sends any by hand.
    """

    sockets: Path
    models: list[pb.ModelStatus]
    say: Callable[[pb.Submit, int], Sequence[int]]
    serve_tokens: bool = True
    chaos: random.Random | None = None
    finish: model_pb2.FinishReason.ValueType = model_pb2.FINISH_REASON_STOP
    lose_after: list[int] = field(default_factory=list)
    blameless: bool = False  # what is lost cannot have been the cause
    reject: list[pb.Rejected | None] = field(default_factory=list)
    silent: bool = False
    pace_s: float = 0.0  # between two batches: what comes together is one event of a stream
    submits: list[pb.Submit] = field(default_factory=list)
    cancels: list[pb.CancelRequest] = field(default_factory=list)
    texts: list[pb.TextStatus] = field(default_factory=list)
    redis: list[str] = field(default_factory=list)
    acks: list[int] = field(default_factory=list)
    hello: pb.GatewayHello | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _number: int = 0
    _replies: asyncio.Queue[pb.GatewayReply] = field(default_factory=asyncio.Queue)
    _server: grpc.aio.Server | None = None
    _push: asyncio.StreamWriter | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def target(self) -> str:
        return f"unix:{self.sockets}/scheduler.sock"

    @property
    def sink(self) -> str:
        return f"unix:{self.sockets}/sink.sock"

    async def start(self) -> None:
        self._server = make_server()
        add_FrontendServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.target)
        await self._server.start()

    async def crash(self) -> None:
        """The scheduler goes at once; its unsent replies with it."""
        assert self._server is not None
        await self._server.stop(grace=None)
        self._replies = asyncio.Queue()

    async def stop(self) -> None:
        await self.break_stream()
        await self.crash()
        for task in self._tasks:
            await task

    async def Serve(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # the stub is for sync servers as well
        writer = asyncio.create_task(self._write(context))
        try:
            async for message in request_iterator:
                await self._on(message)
        finally:
            writer.cancel()
            await asyncio.wait([writer])

    async def Status(self, request: Any, context: Any) -> None:  # type: ignore[override]  # the stub is for sync servers as well
        await context.abort(grpc.StatusCode.UNIMPLEMENTED)

    async def _write(self, context: Any) -> None:
        while True:
            await context.write(await self._replies.get())

    async def _on(self, message: pb.GatewayMessage) -> None:
        async with self.changed:
            match message.WhichOneof("body"):
                case "hello":
                    self.hello = message.hello
                    self.publish(self.models)
                case "submit":
                    self.submits.append(message.submit)
                    await self._answer(message.submit)
                case "text":
                    self.texts.append(message.text)
                case "redis":
                    self.redis.append(message.redis.away)
                case "cancel":
                    self.cancels.append(message.cancel)
            self.changed.notify_all()

    def publish(self, models: list[pb.ModelStatus]) -> None:
        self.models = models
        self.reply(catalog=pb.CatalogStatus(models=models))

    def reply(self, **body: Any) -> None:
        self._replies.put_nowait(pb.GatewayReply(**body))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the gateway does."""
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(condition)

    async def _answer(self, submit: pb.Submit) -> None:
        if self.silent:
            return
        if self.reject and (rejected := self.reject.pop(0)) is not None:
            rejected.request = submit.request
            self.reply(rejected=rejected)
            return
        self.reply(accepted=pb.Accepted(request=submit.request))
        if not self.serve_tokens:
            return
        tokens = [token for choice in submit.choices for token in self.tokens_of(submit, choice)]
        if self.lose_after:
            if some := tokens[: self.lose_after.pop(0)]:
                await self.push(some)  # over another stream than the loss, which may overtake them
                await self.changed.wait_for(lambda: max(self.acks, default=0) >= self._number)
            for choice in submit.choices:
                seq = model_pb2.SeqId(request=submit.request, choice=choice.choice)
                lost = pb.Lost(seq=seq, epoch=choice.epoch, reason="the test says so", blameless=self.blameless)
                self.reply(lost=lost)
        else:
            await self.push(tokens)

    def tokens_of(self, submit: pb.Submit, choice: pb.Choice) -> list[pb.Token]:
        """The tokens from the end of the prefix on, as an engine makes them: to the end or to max_tokens."""
        output = list(self.say(submit, choice.choice))
        limit = submit.limits.max_tokens
        finish = self.finish if len(output) <= limit else model_pb2.FINISH_REASON_LENGTH
        output = output[:limit]
        seq = model_pb2.SeqId(request=submit.request, choice=choice.choice)
        return [
            self._token(submit, seq, choice.epoch, index, token, finish if index == len(output) - 1 else 0)
            for index, token in enumerate(output)
            if index >= len(choice.prefix)
        ]

    def _token(
        self, submit: pb.Submit, seq: model_pb2.SeqId, epoch: int, index: int, token: int, finish: Any
    ) -> pb.Token:
        made = pb.Token(seq=seq, epoch=epoch, index=index, token=token, finish=finish)
        if submit.sampling.HasField("logprobs"):
            made.logprob = -0.5
            for rank in range(submit.sampling.logprobs):
                made.top.add(token=token + rank, logprob=-0.5 - rank)
        return made

    async def push(self, tokens: Sequence[pb.Token], size: int = 5) -> None:
        """In batches; with chaos also twice, and in any order."""
        sent = list(tokens)
        if self.chaos is not None:
            sent += self.chaos.choices(sent, k=len(sent)) if sent else []
            self.chaos.shuffle(sent)
        writer = await self._writer()
        for start in range(0, len(sent), size):
            self._number += 1
            batch = pb.TokenBatch(instance="peer", number=self._number, tokens=sent[start : start + size])
            writer.write(frame(batch))
            await writer.drain()
            await asyncio.sleep(self.pace_s)

    async def break_stream(self) -> None:
        """The connection to the sink breaks; the next push makes a new one."""
        if self._push is not None:
            self._push.transport.abort()
            self._push = None

    async def _writer(self) -> asyncio.StreamWriter:
        if self._push is None:
            assert self.hello is not None
            reader, self._push = await dial(self.hello.sink, None, Role.GATEWAY)
            self._number = 0
            self._tasks.append(asyncio.create_task(self._read_acks(reader)))
        return self._push

    async def _read_acks(self, reader: asyncio.StreamReader) -> None:
        with suppress(EOFError, OSError, asyncio.CancelledError):
            while True:
                ack = await read_frame(reader, pb.TokenAck)
                async with self.changed:
                    self.acks.append(ack.number)
                    self.changed.notify_all()
