"""The compute lane of a modelled sidecar: turns part by part and step by step, with joins, growth and step reports."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.model import CommandId, Finish, Memory, ModelName, Place, SeqId
from aegaeon_simulator.errors import WireViolationError
from aegaeon_simulator.memory import Tier
from aegaeon_simulator.spec import EngineSpec, Running, Sequence, Served


class ComputeLane:
    """What runs turns; the engine adds the other lanes and owns the state."""

    spec: EngineSpec
    models: dict[ModelName, Served]
    device: Tier
    resident: dict[ModelName, int]
    sequences: dict[SeqId, Sequence]
    lanes: dict[str, deque[cmd.Send]]
    active: dict[str, cmd.Send | None]
    seen: dict[CommandId, bool | None]
    turn: Running | None
    last_model: ModelName | None
    _sink: Callable[[SeqId, int, int, Finish | None], None]

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
        wait = self.spec.switch_s if self.last_model not in (None, body.model) else 0.0
        self.turn.wait_s += wait
        self.last_model = body.model
        self._later(wait, self._advance)
        return True

    def _advance(self) -> None:
        turn = self.turn
        assert turn is not None
        if turn.parts:
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
        first = latency.p0 if q.kv == 0 else 0.0
        seconds = first + latency.p1 * part.tokens + latency.p2 * ((q.kv + part.tokens) ** 2 - q.kv**2)

        def done() -> None:
            turn.prefill_s += seconds
            turn.prefill_tokens += part.tokens
            if self.sequences.get(q.seq) is q:
                q.kv += part.tokens
                complete = q.kv >= q.prompt + q.output
                self._produced(turn, q) if complete else self._note(turn, q)
            self._advance()

        self._later(max(seconds, latency.floor if not q.kv else 0.0), done)

    def _step(self, turn: Running) -> None:
        batch = [q for q in self._members(turn) if self._grow_step(turn, q)]
        if not batch:
            waiting = [s for s in turn.decode if s in self.sequences and self.sequences[s].copying is not None]
            incoming = waiting or self._incoming(turn)
            if incoming:
                turn.wait_s += 1e-3
                self._later(1e-3, self._advance)
            else:
                self._report(turn, end=True)
            return
        latency = self.models[turn.body.model].latency
        context = sum(q.kv for q in batch)
        seconds = latency.a + latency.b * context + latency.c * len(batch)
        turn.batch, turn.context = len(batch), context

        def done() -> None:
            turn.done += 1
            turn.report_steps += 1
            turn.decode_s += seconds
            for q in batch:
                if self.sequences.get(q.seq) is q:
                    q.kv += 1
                    self._produced(turn, q)
            due = turn.report_steps >= self.spec.report_steps or any(p.finish for p in turn.changed.values())
            if due and turn.done < turn.steps:
                self._report(turn, end=False)
            self._advance()

        self._later(seconds, done)

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

    def _produced(self, turn: Running, q: Sequence) -> None:
        q.output += 1
        finish = Finish.STOP if q.output >= q.length else None
        self._sink(q.seq, q.epoch, q.output - 1, finish)
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
