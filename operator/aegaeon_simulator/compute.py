"""The compute lane of a modelled sidecar: turns part by part and step by step, with joins, growth and step reports."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants
from aegaeon_scheduler.core.domain import CommandId, Finish, Memory, ModelName, Place, SeqId
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.errors import WireViolationError
from aegaeon_simulator.memory import Tier
from aegaeon_simulator.spec import Chunk, EngineSpec, Running, Sequence, Served
from aegaeon_simulator.use import Use


class TokenSink(Protocol):
    """Takes tokens `index`, `index + 1`, ... of a sequence, with the time at which each came."""

    def __call__(self, seq: SeqId, epoch: int, index: int, times: list[float], finish: Finish | None, /) -> None: ...


def part_s(latency: LatencyConstants, done: int, tokens: int) -> float:
    """Seconds of a prefill part of `tokens` after `done` (Eq. 5 with a floor, whose first part pays the constant)."""
    seconds = latency.p1 * tokens + latency.p2 * ((done + tokens) ** 2 - done**2)
    return seconds if done else max(latency.floor, latency.p0 + seconds)


class ComputeLane:
    """What runs turns; the engine adds the other lanes and owns the state."""

    spec: EngineSpec
    models: dict[ModelName, Served]
    device: Tier
    resident: dict[ModelName, ModelName]
    sequences: dict[SeqId, Sequence]
    lanes: dict[str, deque[cmd.Send]]
    active: dict[str, cmd.Send | None]
    seen: dict[CommandId, bool | None]
    turn: Running | None
    last_model: ModelName | None
    clock: Clock
    use: Use
    _stall_s: float
    _sink: TokenSink

    @abstractmethod
    def memory(self) -> Memory:
        """What is free now."""

    @abstractmethod
    def _say(self, event: ev.Event) -> None: ...

    @abstractmethod
    def _later(self, seconds: float, action: Callable[[], None]) -> None: ...

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _drop(self, q: Sequence) -> None: ...

    def _begin_turn(self, send: cmd.Send, body: cmd.Turn) -> bool:
        if body.model not in self.resident:
            raise WireViolationError(f"a turn of {body.model} starts without its weights")
        self.turn = Running(send.id, body, body.steps, body.slabs, list(body.decode), deque(body.prefill))
        waited = self.use.unblock(self.clock.now)
        if self.last_model not in (None, body.model):
            self._stall_s += self.spec.switch_s
        if self.last_model != body.model:
            self.use.changed(waited)
        self.last_model = body.model
        self._advance()
        return True

    def _advance(self) -> None:
        turn = self.turn
        assert turn is not None
        if self._stall_s > 0.0 and (turn.parts or turn.done < turn.steps):
            stall, self._stall_s = self._stall_s, 0.0
            turn.wait_s += stall
            self.use.switch_s += stall
            self._later(stall, self._advance)
        elif turn.parts:
            self._part(turn, turn.parts.popleft())
        elif turn.done < turn.steps:
            self._step(turn)
        else:
            self._report(turn, end=True)

    def _part(self, turn: Running, part: cmd.PrefillPart) -> None:
        q = self.sequences.get(part.seq)
        if q is None or q.closing:
            self._advance()
            return
        fp, latency = self.models[q.model].footprint, self.models[q.model].latency
        need = -(-(q.kv + part.tokens) // fp.kv_block_tokens) - q.blocks
        if not self._grow(turn, q, need):
            turn.changed[q.seq] = ev.Progress(q.seq, q.epoch, q.output, q.kv, starved=True)
            turn.parts = deque(p for p in turn.parts if p.seq != q.seq)
            self._advance()
            return
        q.place = Place.DEVICE
        seconds = part_s(latency, q.kv, part.tokens)

        def done() -> None:
            turn.prefill_s += seconds
            self.use.prefill_s += seconds
            turn.prefill_tokens += part.tokens
            if self.sequences.get(q.seq) is q:
                q.kv += part.tokens
                complete = q.kv >= q.prompt + q.output
                self._produced(turn, q, [self.clock.now]) if complete else self._note(turn, q)
            self._advance()

        self._later(seconds, done)

    # -- decode: steps between which nothing happens are one event ---------------------------------------------------

    def _step(self, turn: Running) -> None:
        batch = [q for q in self._members(turn) if self._grow_step(turn, q)]
        if not batch:
            self._without_batch(turn)
            return
        latency = self.models[turn.body.model].latency
        steps = min(self.spec.report_steps - turn.report_steps, turn.steps - turn.done)
        for q in batch:
            steps = min(steps, q.length - q.output)
        steps = self._grow_ahead(turn, batch, max(1, steps))
        context = sum(q.kv for q in batch)
        first_s = latency.a + latency.b * context + latency.c * len(batch)
        turn.batch, turn.context = len(batch), context
        turn.chunk = Chunk(self.clock.now, batch, steps, first_s, latency.b * len(batch))
        self._await_chunk(turn, turn.chunk)

    def _without_batch(self, turn: Running) -> None:
        waiting = any(s in self.sequences and self.sequences[s].copying is not None for s in turn.decode)
        if waiting or self._incoming(turn):
            turn.idle_since = self.clock.now
        else:
            self._report(turn, end=True)

    def _await_chunk(self, turn: Running, chunk: Chunk) -> None:
        steps = chunk.steps

        def due() -> None:
            if turn.chunk is chunk and chunk.steps == steps:
                self._deliver(turn, chunk, steps)
                self._end_chunk(turn)

        self._later(chunk.began + chunk.seconds(steps) - self.clock.now, due)

    def _end_chunk(self, turn: Running) -> None:
        turn.chunk = None
        due = turn.report_steps >= self.spec.report_steps or any(p.finish for p in turn.changed.values())
        if due and turn.done < turn.steps:
            self._report(turn, end=False)
        if self.turn is turn:
            self._advance()

    def _deliver(self, turn: Running, chunk: Chunk, upto: int) -> None:
        """Count the chunk's steps up to this one, with the time of each of their tokens."""
        steps = upto - chunk.done
        if steps <= 0:
            return
        times = chunk.times(upto)
        spent = chunk.seconds(upto) - chunk.seconds(chunk.done)
        chunk.done = upto
        turn.done += steps
        turn.report_steps += steps
        turn.decode_s += spent
        self.use.decode_s += spent
        for q in chunk.batch:
            if self.sequences.get(q.seq) is q:
                q.kv += steps
                self._produced(turn, q, times)

    def _nudge(self) -> None:
        """Something concerns the running turn: it goes on, or looks around at its next token boundary."""
        turn = self.turn
        if turn is None:
            return
        if turn.idle_since is not None:
            waited = self.clock.now - turn.idle_since
            turn.idle_since = None
            turn.wait_s += waited
            self.use.switch_s += waited
            self._later(0.0, self._advance)
        elif turn.chunk is not None:
            chunk = turn.chunk
            at = chunk.done_by(self.clock.now)
            self._deliver(turn, chunk, at)
            if at + 1 < chunk.steps:
                chunk.steps = at + 1
                self._await_chunk(turn, chunk)

    def _incoming(self, turn: Running) -> bool:
        wanted = set(turn.decode)
        return any(isinstance(s.body, (cmd.SwapIn, cmd.Adopt)) and s.body.seq in wanted for s in self.lanes["in"])

    def _members(self, turn: Running) -> Iterable[Sequence]:
        for seq in list(turn.decode):
            q = self.sequences.get(seq)
            if q is None or q.closing:
                turn.decode.remove(seq)
            elif q.place is Place.DEVICE and q.copying is None:
                yield q

    def _grow_step(self, turn: Running, q: Sequence) -> bool:
        fp = self.models[q.model].footprint
        need = -(-(q.kv + 1) // fp.kv_block_tokens) - q.blocks
        if self._grow(turn, q, need):
            return True
        turn.decode.remove(q.seq)
        turn.changed[q.seq] = ev.Progress(q.seq, q.epoch, q.output, q.kv, starved=True)
        return False

    def _grow_ahead(self, turn: Running, batch: list[Sequence], steps: int) -> int:
        """Blocks for so many steps; fewer steps where the grant ends before."""
        per = self.models[turn.body.model].footprint.kv_block_tokens
        for q in batch:
            if not self._grow(turn, q, -(-(q.kv + steps) // per) - q.blocks):
                steps = q.blocks * per - q.kv
        return steps

    def _grow(self, turn: Running, q: Sequence, blocks: int) -> bool:
        if blocks <= 0:
            return True
        taken = self.device.grow(self.models[q.model].footprint, blocks, turn.slabs)
        if taken is None:
            return False
        turn.slabs -= taken
        q.blocks += blocks
        return True

    def _note(self, turn: Running, q: Sequence, finish: Finish | None = None) -> None:
        turn.changed[q.seq] = ev.Progress(q.seq, q.epoch, q.output, q.kv, finish=finish)

    def _produced(self, turn: Running, q: Sequence, times: list[float]) -> None:
        first = q.output
        q.output += len(times)
        finish = Finish.STOP if q.output >= q.length else None
        self._sink(q.seq, q.epoch, first, times, finish)
        self._note(turn, q, finish)
        if finish is not None:
            turn.decode = [s for s in turn.decode if s != q.seq]
            self._drop(q)

    def _report(self, turn: Running, end: bool) -> None:
        event = ev.TurnProgress(
            self.spec.instance, turn.id, tuple(turn.changed.values()), turn.report_steps, turn.decode_s,
            turn.prefill_tokens, turn.prefill_s, turn.wait_s, turn.batch, turn.context, self.memory(), end,
        )  # fmt: skip
        turn.changed = {}
        turn.report_steps = turn.prefill_tokens = 0
        turn.decode_s = turn.prefill_s = turn.wait_s = 0.0
        if end:
            self.seen[turn.id] = True
            self.turn, self.active["compute"] = None, None
        self._say(event)
        if end:
            self._start()
