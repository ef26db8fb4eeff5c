"""The stream to the scheduler: submits, cancels, and after every break starts anew with what was received so far."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import grpc

from aegaeon_gateway.errors import (
    ApiError,
    EngineError,
    InvalidRequestError,
    ModelChangedError,
    ModelWithdrawnError,
    model_failed,
    overloaded,
)
from aegaeon_gateway.generation.choice import Choice
from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.metrics import Metrics
from aegaeon_gateway.models.catalog import Catalog, failure_of
from aegaeon_gateway.request_id import logged_as
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_gateway.rpc.outbox import Outbox
from aegaeon_gateway.tenancy import Tenants
from aegaeon_proto.certificates import TlsError
from aegaeon_proto.channels import why
from aegaeon_proto.leaders import Leader, Leaders, NoLeaderError
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1.gateway_pb2_grpc import FrontendStub

log = logging.getLogger(__name__)

_BACKOFF_S = (0.05, 1.0)  # first and longest pause between two attempts
_SWEEP_S = 0.2
_CHANNEL = [
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
]


class SchedulerLink:
    """Keeps one Serve stream alive for ever and is the only one that talks on it.

    `targets`: schedulers, of which one leads. `hold_s`: a request without a token and without any progress for so long,
    while the scheduler is unavailable or has not accepted it, is answered 503. `unusable`: the models whose tokenizer
    or template this gateway cannot use, and why.
    """

    def __init__(
        self,
        *,
        name: str,
        targets: Sequence[str],
        tls: Path | None,
        sink: str,
        hold_s: float,
        open_: OpenRequests,
        catalog: Catalog,
        tenants: Tenants,
        metrics: Metrics,
        unusable: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._hello = pb.GatewayMessage(hello=pb.GatewayHello(gateway=name, sink=sink, batches=True))
        self._leaders = Leaders(targets, tls, _CHANNEL)
        self._tls = tls
        self._hold_s = hold_s
        self._open = open_
        self._catalog = catalog
        self._tenants = tenants
        self._metrics = metrics
        self._unusable = unusable
        self.gateways = 1
        """of the pool that are attached, as the scheduler says"""
        self._redis_away = ""
        self._outbox: Outbox | None = None
        self._unsent_cancels: list[pb.CancelRequest] = []

    @property
    def connected(self) -> bool:
        """Attached, and heard from within a few seconds (see Leaders)."""
        return self._outbox is not None

    def load(self) -> tuple[int, int]:
        """How many requests wait for their first token, and how many get tokens."""
        return self._open.load()

    def open(self, generation: Generation) -> None:
        """Take a generation into the table and submit it, now or as soon as the scheduler is there."""
        self._open.add(generation)
        self._submit(generation, generation.open_choices)

    def close(self, generation: Generation) -> None:
        """Drop a generation; what engines still work on for it is cancelled."""
        self._open.remove(generation)
        left = generation.open_choices
        if generation.sent and left:
            everything = len(left) == len(generation.choices)
            self.cancel(generation, [] if everything else left)

    def hold(self, generation: Generation) -> None:
        """Its quota is used up: no engine gives it another turn. What the last one brings is received all the same."""
        if running := generation.open_choices:
            now = time.monotonic()
            for choice in running:
                choice.hold(now)
            self.cancel(generation, [])

    def resume(self, generation: Generation, choices: Sequence[Choice]) -> None:
        """There is quota for these: they go on from what they have received. Their KV cache was kept as a prefix."""
        now = time.monotonic()
        for choice in choices:
            choice.resume(now)
        self._submit(generation, choices)

    def cancel(self, generation: Generation, choices: Sequence[Choice]) -> None:
        """End these choices (none given: all) at the engines."""
        self._cancel(pb.CancelRequest(request=generation.id, choices=[choice.number for choice in choices]))

    def _cancel(self, message: pb.CancelRequest) -> None:
        if self._outbox is None:
            self._unsent_cancels.append(message)
        else:
            self._outbox.put(pb.GatewayMessage(cancel=message))

    def text_status(self, model: str, reason: str) -> None:
        """Tell the scheduler why a model's text cannot be used here; an empty reason: it can."""
        if self._outbox is not None:
            self._outbox.put(pb.GatewayMessage(text=pb.TextStatus(model=model, reason=reason)))

    def redis_status(self, away: str) -> None:
        """Tell the scheduler, now or when it is there, why Redis cannot be used here; empty: it can."""
        self._redis_away = away
        if self._outbox is not None:
            self._outbox.put(pb.GatewayMessage(redis=pb.RedisStatus(away=away)))

    async def run(self) -> None:
        """Connect, serve, and connect again until cancelled."""
        pause = _BACKOFF_S[0]
        while True:
            began = time.monotonic()
            try:
                async with self._leaders.leader() as leader:
                    await self._leaders.follow(leader, self._serve(leader))
                log.warning("the scheduler at %s ended the stream", leader.target)
            except grpc.aio.AioRpcError as error:
                log.warning("the scheduler at %s broke the stream: %s", leader.target, why(error, self._tls))
            except (NoLeaderError, TlsError) as error:
                log.warning("no scheduler: %s", error)
            finally:
                self._outbox = None
                self._metrics.scheduler_up.set(0)
            if time.monotonic() - began > 2 * _BACKOFF_S[1]:
                pause = _BACKOFF_S[0]
            await asyncio.sleep(pause)
            pause = min(2 * pause, _BACKOFF_S[1])

    async def sweep(self) -> None:
        """Look after requests that wait: submit again what was refused for a moment, answer what waited too long."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            for generation in self._open:
                self._look_after(generation, now)

    async def _serve(self, leader: Leader) -> None:
        """One stream, until the scheduler ends it. Raises AioRpcError when it breaks."""
        outbox = Outbox(self._open)
        call = FrontendStub(leader.channel).Serve(outbox.drain())
        outbox.put(self._hello)
        try:
            async for reply in call:
                if self._outbox is None:
                    self._attach(leader, outbox)
                for part in reply.more or (reply,):
                    self._on_reply(part)
        finally:
            outbox.close()  # a call that has failed leaves the task that reads its requests where it waits

    def _attach(self, leader: Leader, outbox: Outbox) -> None:
        """The first reply has come: the scheduler is there. Tell it everything that is open."""
        self._outbox = outbox
        self._metrics.scheduler_up.set(1)
        self._metrics.kv_used, self.gateways = 0.0, 1  # until it says otherwise
        log.info("attached to the scheduler at %s with %d open requests", leader.target, len(self._open))
        cancels, self._unsent_cancels = self._unsent_cancels, []
        for cancel in cancels:
            outbox.put(pb.GatewayMessage(cancel=cancel))
        for model, reason in self._unusable().items():
            self.text_status(model, reason)
        if self._redis_away:
            self.redis_status(self._redis_away)
        for generation in self._open:
            self._submit(generation, generation.open_choices)

    def _submit(self, generation: Generation, choices: Sequence[Choice]) -> None:
        if self._outbox is None or not choices:
            return
        generation.accepted = False
        generation.retry_at = None
        self._outbox.submit(generation, choices)

    def _on_reply(self, reply: pb.GatewayReply) -> None:
        kind = reply.WhichOneof("body")
        if kind == "catalog":
            self._catalog.update(reply.catalog.models)
        elif kind == "tenants":
            self._tenants.take(reply.tenants)
        elif kind == "load":
            self._metrics.kv_used = reply.load.kv_used
            self.gateways = reply.load.gateways or 1
        elif kind == "places":
            self._on_places(reply.places.places)
        elif kind == "accepted" and (generation := self._open.get(reply.accepted.request)):
            generation.accept(time.monotonic())
        elif kind == "rejected" and (generation := self._open.get(reply.rejected.request)):
            self._on_rejected(generation, reply.rejected)
        elif kind == "lost":
            self._on_lost(reply.lost)
        elif kind == "ended" and (generation := self._open.get(reply.ended.seq.request)):
            generation.ended(reply.ended.seq.choice, reply.ended.epoch, time.monotonic())
        elif kind == "taken" and self._outbox is not None:
            self._on_taken(self._outbox, reply.taken.retry_after_s)

    def _on_taken(self, outbox: Outbox, retry_after_s: float) -> None:
        """The scheduler has time for more, but not for what has waited too long. One that is silent may be about to be
        replaced: until then all wait."""
        for generation in outbox.overdue():
            generation.fail(overloaded("The scheduler is late with what runs; try again.", retry_after_s))
        outbox.taken()

    def _on_places(self, places: Iterable[pb.Place]) -> None:
        for place in places:
            if (generation := self._open.get(place.request)) is not None:
                generation.place = place.place

    def _on_lost(self, lost: pb.Lost) -> None:
        """Submit it again. What has all its tokens here, which came before the engine could report the end, is over."""
        generation = self._open.get(lost.seq.request)
        if generation is None or generation.is_complete(lost.seq.choice):
            self._cancel(pb.CancelRequest(request=lost.seq.request, choices=[lost.seq.choice]))
            return
        with logged_as(generation.request.marks.log_id):
            log.warning("%s choice %d lost: %s", generation.id, lost.seq.choice, lost.reason)
        if (choice := generation.lose(lost.seq.choice, lost.epoch, lost.blameless)) is not None:
            self._submit(generation, [choice])

    def _on_rejected(self, generation: Generation, rejected: pb.Rejected) -> None:
        """Retry or fail; a request that was with an engine before is not given up because there is no room at this
        moment."""
        if rejected.code == pb.REJECT_CODE_OVERLOADED and generation.moved:
            generation.retry(time.monotonic(), max(rejected.retry_after_s, _SWEEP_S))
        else:
            generation.sent = generation.moved  # of what was never with an engine nothing is left to cancel
            generation.fail(self._error_of(generation.request.model, rejected))

    def _error_of(self, model: str, rejected: pb.Rejected) -> ApiError:
        match rejected.code:
            case pb.REJECT_CODE_UNKNOWN_MODEL:
                return ModelWithdrawnError(model)
            case pb.REJECT_CODE_MODEL_FAILED:
                return self._failure(model) or model_failed(model, rejected.reason)
            case pb.REJECT_CODE_OVERLOADED | pb.REJECT_CODE_UNSERVED:
                return overloaded(rejected.reason or "The engines are full; try again.", rejected.retry_after_s)
            case pb.REJECT_CODE_TOO_LONG | pb.REJECT_CODE_INVALID:
                too_long = rejected.code == pb.REJECT_CODE_TOO_LONG
                code = "context_length_exceeded" if too_long else "invalid_value"
                return InvalidRequestError(rejected.reason, code=code)
            case pb.REJECT_CODE_CHANGED:
                return ModelChangedError(model)
            case _:
                return EngineError(rejected.reason or "The engine failed on this request.")

    def _look_after(self, generation: Generation, now: float) -> None:
        """One whose client reads an answer goes on for as long as it takes."""
        if generation.accepted and self.connected:
            generation.progress_at = now  # its scheduler bounds its wait, perhaps at more than `hold_s`
        if generation.gives_up_at is not None and now >= generation.gives_up_at:
            generation.fail(EngineError("The engine could not go on with this request."))
        elif now - generation.progress_at > self._hold_s and not generation.started:
            generation.fail(self._not_taken(generation.request.model))
        elif generation.retry_at is not None and now >= generation.retry_at:
            self._submit(generation, generation.open_choices)
        elif truncated := generation.truncated(now):
            log.warning("%s: its last tokens were lost with their engine; computing them again", generation.id)
            self._submit(generation, truncated)

    def _not_taken(self, model: str) -> ApiError:
        """No engine answered: because of the model, if that is known."""
        late = overloaded("No engine took the request in time; try again.", self._hold_s / 4)
        return self._failure(model) or late

    def _failure(self, model: str) -> ApiError | None:
        status = self._catalog.find(model)
        return None if status is None else failure_of(status)
