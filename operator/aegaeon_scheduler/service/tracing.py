"""Spans of traced requests: their wait in the queue, the turns they are in, the switches and copies these wait for.

An observer of the driver: it sees what the core decides and what engines report. A span is made when its end is known,
with the times that reports give. Of requests that are not traced it keeps nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from opentelemetry.context import Context
from opentelemetry.trace import Span, StatusCode, Tracer, set_span_in_context

from aegaeon_proto.tracing import context_of_parent
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import CommandId, Finish, InstanceId, ModelName, SeqId

_COPIES = {commands.SwapOut: "swap-out", commands.SwapIn: "swap-in", commands.Adopt: "adopt"}
Attributes = dict[str, str | int | float]
Key = tuple[InstanceId, CommandId]


@dataclass(slots=True)
class _Traced:
    """One sequence; `queue` is open while it waits for its prefill."""

    context: Context
    queue: Span | None


@dataclass(slots=True)
class _Turn:
    """A turn in which a sequence that is traced is, or was; `since`: when each joined,
    seconds of the clock; -inf: before it began."""

    model: ModelName
    reason: str
    after: tuple[CommandId, ...]
    since: dict[SeqId, float]
    began: float | None = None
    wait_s: float = 0.0
    steps: int = 0
    prefill_tokens: int = 0
    batch: int = 0
    loads: list[tuple[ModelName, str, float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Copy:
    name: str
    seq: SeqId
    reason: str


class RequestSpans:
    """`traceparent_of`: of a submitted sequence, empty when it is not traced; `clock`: the driver's, seconds."""

    def __init__(self, tracer: Tracer, clock: Callable[[], float], traceparent_of: Callable[[SeqId], str]) -> None:
        self._tracer = tracer
        self._clock = clock
        self._traceparent_of = traceparent_of
        self._traced: dict[SeqId, _Traced] = {}
        self._turns: dict[Key, _Turn] = {}
        self._copies: dict[Key, _Copy] = {}
        self._loads: dict[Key, tuple[ModelName, str]] = {}

    def __call__(self, now: float, event: events.Event, decided: list[commands.Command], seconds: float) -> None:
        """See Observer."""
        match event:
            case events.Submitted():
                self._submitted(event, now)
            case events.TurnProgress():
                self._progressed(event, now)
            case events.CommandDone():
                self._done(event, now)
            case events.CommandFailed() | events.CommandSkipped():
                self._forget((event.instance, event.id))
            case events.InstanceUp() | events.InstanceDown():
                for key in [key for kept in self._kept for key in kept if key[0] == event.instance]:
                    self._forget(key)
        for command in decided:
            self._decided(command, now)

    @property
    def _kept(self) -> Iterable[dict[Key, _Turn] | dict[Key, _Copy] | dict[Key, tuple[ModelName, str]]]:
        return self._turns, self._copies, self._loads

    def __len__(self) -> int:
        """The number of kept records; 0 when all traced work has ended."""
        return len(self._traced) + sum(len(kept) for kept in self._kept)

    # ---- what happened ----------------------------------------------------------------------------------------------

    def _submitted(self, event: events.Submitted, now: float) -> None:
        if not (traceparent := self._traceparent_of(event.seq)):
            return
        context = context_of_parent(traceparent)
        attributes: Attributes = {"aegaeon.choice": event.seq.choice, "aegaeon.epoch": event.epoch}
        attributes |= {"aegaeon.prompt_tokens": event.prompt_tokens, "aegaeon.prefix_tokens": event.prefix_tokens}
        self._end_queue(event.seq, now, "submitted again")
        queue = self._tracer.start_span("queue", context, attributes=attributes, start_time=self._wall(now))
        self._traced[event.seq] = _Traced(context, queue)

    def _progressed(self, event: events.TurnProgress, now: float) -> None:
        turn = self._turns.get((event.instance, event.turn))
        if turn is None:
            return
        if turn.began is None:
            turn.began = now - event.decode_s - event.prefill_s
            turn.wait_s = event.wait_s
            for seq in turn.since:
                self._end_queue(seq, turn.began)
        turn.steps += event.steps
        turn.prefill_tokens += event.prefill_tokens
        turn.batch = max(turn.batch, event.batch)
        for progress in event.progress:
            if progress.finish is not None or progress.starved:
                self._leave(event.instance, turn, progress.seq, now, progress.finish)
        if event.end:
            for seq in list(turn.since):
                self._leave(event.instance, turn, seq, now)
            del self._turns[event.instance, event.turn]

    def _done(self, event: events.CommandDone, now: float) -> None:
        key = event.instance, event.id
        began = now - event.seconds
        if (copy := self._copies.get(key)) is not None and (traced := self._traced.get(copy.seq)) is not None:
            attributes: Attributes = {"aegaeon.instance": event.instance, "aegaeon.reason": copy.reason}
            self._span(copy.name, traced.context, began, now, attributes | {"aegaeon.bytes": event.bytes_moved})
        if (load := self._loads.get(key)) is not None:
            for (instance, _), turn in self._turns.items():
                if instance == event.instance and event.id in turn.after:
                    turn.loads.append((*load, began, now))
        self._forget(key)

    def _forget(self, key: Key) -> None:
        for kept in self._kept:
            kept.pop(key, None)

    # ---- what was decided -------------------------------------------------------------------------------------------

    def _decided(self, command: commands.Command, now: float) -> None:
        match command:
            case commands.Send():
                self._sent(command, now)
            case commands.Reject():
                self._end_queue(command.seq, now, f"{command.code.value}: {command.reason}")
            case commands.SequenceEnded():
                self._end_queue(command.seq, now, "ended before its prefill")
                self._traced.pop(command.seq, None)

    def _sent(self, send: commands.Send, now: float) -> None:
        key, body = (send.instance, send.id), send.body
        match body:
            case commands.Turn():
                self._planned(send, body, now)
            case commands.Amend():
                self._amended((send.instance, body.turn), body, now)
            case commands.Load() if self._traced:
                self._loads[key] = body.model, send.reason
            case commands.SwapOut() | commands.SwapIn() | commands.Adopt() if body.seq in self._traced:
                self._copies[key] = _Copy(_COPIES[type(body)], body.seq, send.reason)

    def _planned(self, send: commands.Send, body: commands.Turn, now: float) -> None:
        named = (*(part.seq for part in body.prefill), *body.decode)
        members = [seq for seq in dict.fromkeys(named) if seq in self._traced]
        if not members:
            return
        self._turns[send.instance, send.id] = _Turn(body.model, send.reason, send.after, dict.fromkeys(members, -inf))
        for seq in members:
            if (queue := self._traced[seq].queue) is not None:
                planned: Attributes = {"aegaeon.instance": send.instance, "aegaeon.reason": send.reason}
                queue.add_event("turn planned", planned, self._wall(now))

    def _amended(self, key: Key, amend: commands.Amend, now: float) -> None:
        if (turn := self._turns.get(key)) is None:
            return
        for seq in amend.join:
            if seq in self._traced:
                turn.since.setdefault(seq, now)
        for seq in amend.leave:
            self._leave(key[0], turn, seq, now)

    # ---- spans ------------------------------------------------------------------------------------------------------

    def _leave(self, instance: InstanceId, turn: _Turn, seq: SeqId, now: float, finish: Finish | None = None) -> None:
        """Its part in a turn is over, if it had begun."""
        joined = turn.since.pop(seq, None)
        traced = self._traced.get(seq)
        if joined is None or traced is None or turn.began is None:
            return
        attributes: Attributes = {
            "aegaeon.instance": instance,
            "aegaeon.model": turn.model,
            "aegaeon.reason": turn.reason,
            "aegaeon.steps": turn.steps,
            "aegaeon.batch": turn.batch,
            "aegaeon.prefill_tokens": turn.prefill_tokens,
        }
        if finish is not None:
            attributes["aegaeon.finish"] = finish.value
        self._span("turn", traced.context, max(turn.began, joined), now, attributes)
        if turn.wait_s > 0 and joined < turn.began:
            switch = self._span("switch", traced.context, turn.began - turn.wait_s, turn.began, attributes)
            for model, reason, began, ended in turn.loads:
                loaded: Attributes = {"aegaeon.instance": instance, "aegaeon.model": model, "aegaeon.reason": reason}
                self._span("load", set_span_in_context(switch, traced.context), began, ended, loaded)

    def _end_queue(self, seq: SeqId, now: float, refused: str = "") -> None:
        traced = self._traced.get(seq)
        if traced is None or traced.queue is None:
            return
        if refused:
            traced.queue.set_status(StatusCode.ERROR, refused)
        traced.queue.end(self._wall(now))
        traced.queue = None

    def _span(self, name: str, context: Context, began: float, ended: float, attributes: Attributes) -> Span:
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=self._wall(began))
        span.end(self._wall(ended))
        return span

    def _wall(self, at: float) -> int:
        """A time of the clock in nanoseconds since 1970."""
        return time.time_ns() - int((self._clock() - at) * 1e9)
