"""The compute lane of a modelled sidecar: turns part by part and step by step, with joins, growth and step reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import CommandId, Finish, ModelName, Place, Role, SeqId
from aegaeon_simulator.engine.lanes import Lanes
from aegaeon_simulator.engine.spec import Chunk, Running, Sequence, part_s, together_s
from aegaeon_simulator.engine.state import EngineState
from aegaeon_simulator.errors import WireViolationError


class TokenSink(Protocol):
    """Takes tokens `index`, `index + 1`, ... of a sequence, with the time at which each came."""

    def __call__(self, seq: SeqId, epoch: int, index: int, times: list[float], finish: Finish | None, /) -> None: ...


class ComputeLane:
    """Runs turns. `over` is called when the running turn has ended and was reported."""

    def __init__(self, state: EngineState, lanes: Lanes, sink: TokenSink, over: Callable[[CommandId], None]) -> None:
        self.turn: Running | None = None
        self._state = state
        self._lanes = lanes
        self._sink = sink
        self._over = over
        self._last_model: ModelName | None = None
        self._tried: set[ModelName] = set()  # models that have decoded here
        self._stall_s = 0.0  # the lane owes so much before it goes on

    def stall(self, seconds: float) -> None:
        """Add seconds that a load delays the lane, due before its next part or step."""
        self._stall_s += seconds

    def wait(self) -> None:
        """Note that the next turn is queued and waits for its data."""
        self._state.usage.block(self._state.clock.now)

    def begin(self, send: cmd.Send, body: cmd.Turn) -> None:
        """Run a turn whose commands before it are done."""
        if body.model not in self._state.resident:
            raise WireViolationError(f"a turn of {body.model} starts without its weights")
        if body.decode and self._state.models[body.model].footprint.pools:
            raise WireViolationError(f"a turn of {body.model}, which generates nothing, has decode steps")
        self.turn = Running(send.id, body, body.steps, body.slabs, list(body.decode), deque(body.prefill))
        waited = self._state.usage.unblock(self._state.clock.now)
        if body.warm_up:
            self._warm_up(self.turn)
            return
        if (body.steps or body.prefill) and self._last_model != body.model:
            self._stall_s += 0.0 if self._last_model is None else self._state.spec.switch_s
            self._state.usage.changed(waited)
            self._last_model = body.model
        self._advance()

    def _warm_up(self, turn: Running) -> None:
        if turn.body.steps or turn.body.prefill or turn.body.decode:
            raise WireViolationError(f"a turn that warms up {turn.body.model} has something else to do")
        if self._is_first(turn):
            turn.report_steps = 1  # a decode
        else:
            self._advance()

    def is_cold(self, model: ModelName) -> bool:
        """True when the model's first step on this engine will take longer."""
        spec = self._state.spec
        decodes = spec.role is not Role.PREFILL and not self._state.models[model].footprint.pools
        return decodes and spec.first_s > 0.0 and model not in self._tried

    def touch(self, body: cmd.Body) -> None:
        """Interrupt the running turn at its next token boundary when the command concerns it."""
        if isinstance(body, (cmd.Open, cmd.Close)):
            concerned = self.decodes(body.seq)
        else:
            concerned = isinstance(body, cmd.Amend) and self.turn is not None and body.turn == self.turn.id
        if concerned:
            self.interrupt()

    def amend(self, body: cmd.Amend) -> None:
        """Change the running turn, if it is this one."""
        if self.turn is not None and self.turn.id == body.turn:
            self.turn.amend(body)

    def decodes(self, seq: SeqId) -> bool:
        """True when the running turn decodes this sequence."""
        return self.turn is not None and seq in self.turn.decode

    def runs(self, model: ModelName) -> bool:
        """True when the running turn belongs to this model."""
        return self.turn is not None and self.turn.body.model == model

    def _advance(self) -> None:
        turn = self.turn
        assert turn is not None
        if self._stall_s > 0.0 and (turn.parts or turn.done < turn.steps):
            stall, self._stall_s = self._stall_s, 0.0
            turn.wait_s += stall
            self._state.usage.switch_s += stall
            self._state.later(stall, self._advance)
        elif len(turn.parts) > 1 and self._state.models[turn.body.model].footprint.pools:
            self._pass(turn)
        elif turn.parts:
            self._part(turn, turn.parts.popleft())
        elif turn.done < turn.steps:
            self._step(turn)
        else:
            self._report(turn, end=True)

    def _pass(self, turn: Running) -> None:
        """All prompts of a turn of a model that generates nothing, in one pass: each is a part, and none has KV."""
        live = [(self._state.sequences.get(part.seq), part.tokens) for part in turn.parts]
        if len({part.seq for part in turn.parts}) < len(live) or any(q and q.kv for q, _ in live):
            raise WireViolationError(f"a turn of {turn.body.model} with several prompts has parts of them")
        batch = [(q, tokens) for q, tokens in live if q and not q.closing and self._has_room(turn, q, tokens)]
        turn.parts.clear()
        lengths = [tokens for _, tokens in batch]
        seconds = together_s(self._state.models[turn.body.model].latency, lengths) if batch else 0.0
        self._prefill(turn, batch, seconds)

    def _part(self, turn: Running, part: cmd.PrefillPart) -> None:
        q = self._state.sequences.get(part.seq)
        if q is None or q.closing or q.sampled:
            self._advance()
            return
        if q.place is Place.HOST or q.copying is not None:
            self._await_kv(turn, part)
            return
        copy_s = self._state.reuse(q)
        tokens = min(part.tokens, q.prompt + q.output - q.kv)
        if not self._has_room(turn, q, tokens):
            turn.parts = deque(p for p in turn.parts if p.seq != q.seq)
            self._advance()
            return
        self._compute(turn, q, tokens, copy_s)

    def _compute(self, turn: Running, q: Sequence, tokens: int, copy_s: float) -> None:
        """Compute a part of a prompt, once what was found of it on the host is here."""

        def begin() -> None:
            self._prefill(turn, [(q, tokens)], part_s(self._state.models[q.model].latency, q.kv, tokens))

        if copy_s:
            turn.wait_s += copy_s
            self._state.usage.switch_s += copy_s
            self._state.later(copy_s, begin)
        else:
            begin()

    def _prefill(self, turn: Running, batch: list[tuple[Sequence, int]], seconds: float) -> None:
        """Compute so many tokens of these prompts together; a prompt that is complete samples a token."""

        def done() -> None:
            turn.prefill_s += seconds
            self._state.usage.prefill_s += seconds
            for q, tokens in batch:
                turn.prefill_tokens += tokens
                self._state.usage.prefill_tokens += tokens
                if self._state.sequences.get(q.seq) is q:
                    q.kv += tokens
                    self._state.keep_in(self._state.device, q)
                    complete = q.kv >= q.prompt + q.output
                    self._produced(turn, q, [self._state.clock.now]) if complete else self._note(turn, q)
            self._advance()

        self._state.later(seconds, done)

    def _has_room(self, turn: Running, q: Sequence, tokens: int) -> bool:
        """Return whether a prompt has blocks for so many tokens more; where it has not it is starved."""
        if self._state.grow(turn, q, tokens):
            q.place = Place.DEVICE
            return True
        self._note(turn, q, starved=True)
        return False

    def _await_kv(self, turn: Running, part: cmd.PrefillPart) -> None:
        """The part waits for the copy in that is under way or queued; without one it is passed over."""
        q = self._state.sequences[part.seq]
        if q.copying is not None or self._lanes.bring_in([part.seq]):
            turn.parts.appendleft(part)
            turn.idle_since = self._state.clock.now
        else:
            self._advance()

    # -- decode: steps between which nothing happens are one event ---------------------------------------------------

    def _step(self, turn: Running) -> None:
        batch = [q for q in self._members(turn) if self._grow_step(turn, q)]
        if not batch:
            self._without_batch(turn)
            return
        latency = self._state.models[turn.body.model].latency
        if self._is_first(turn):
            return
        steps = min(self._report_steps(turn) - turn.report_steps, turn.steps - turn.done)
        for q in batch:
            steps = min(steps, q.length - q.output)
        steps = self._state.grow_ahead(turn, batch, max(1, steps))
        context = sum(q.kv for q in batch)
        first_s = latency.a + latency.b * context + latency.c * len(batch)
        turn.batch, turn.context = len(batch), context
        turn.chunk = Chunk(self._state.clock.now, batch, steps, first_s, latency.b * len(batch))
        self._await_chunk(turn, turn.chunk)

    def _report_steps(self, turn: Running) -> int:
        return max(turn.body.report_steps, self._state.spec.report_steps)

    def _is_first(self, turn: Running) -> bool:
        """Start the capture of a model's graphs before its first step; True when it did: nothing else runs
        meanwhile."""
        first_s, model = self._state.spec.first_s, turn.body.model
        if not self.is_cold(model):
            return False
        self._tried.add(model)
        turn.first_s += first_s
        self._state.usage.first_s += first_s
        self._state.later(first_s, self._advance)
        return True

    def _without_batch(self, turn: Running) -> None:
        waiting = any(s in self._state.sequences and self._state.sequences[s].copying is not None for s in turn.decode)
        if waiting or self._lanes.bring_in(turn.decode):
            turn.idle_since = self._state.clock.now
        else:
            self._report(turn, end=True)

    def _await_chunk(self, turn: Running, chunk: Chunk) -> None:
        steps = chunk.steps

        def due() -> None:
            if turn.chunk is chunk and chunk.steps == steps:
                self._deliver(turn, chunk, steps)
                self._end_chunk(turn)

        self._state.later(chunk.began + chunk.seconds(steps) - self._state.clock.now, due)

    def _end_chunk(self, turn: Running) -> None:
        turn.chunk = None
        due = turn.report_steps >= self._report_steps(turn) or any(p.finish for p in turn.changed.values())
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
        self._state.usage.decode_s += spent
        for q in chunk.batch:
            if self._state.sequences.get(q.seq) is q:
                q.kv += steps
                self._produced(turn, q, times)

    def interrupt(self) -> None:
        """Let the running turn check its state at its next token boundary."""
        if (turn := self.turn) is None:
            return
        if turn.idle_since is not None:
            waited = self._state.clock.now - turn.idle_since
            turn.idle_since = None
            turn.wait_s += waited
            self._state.usage.switch_s += waited
            self._state.later(0.0, self._advance)
        elif turn.chunk is not None:
            at = turn.chunk.done_by(self._state.clock.now)
            self._deliver(turn, turn.chunk, at)
            if at + 1 < turn.chunk.steps:
                turn.chunk.steps = at + 1
                self._await_chunk(turn, turn.chunk)

    def _members(self, turn: Running) -> Iterable[Sequence]:
        for seq in list(turn.decode):
            q = self._state.sequences.get(seq)
            if q is None or q.closing:
                turn.decode.remove(seq)
            elif q.place is Place.DEVICE and q.copying is None:
                yield q

    def _grow_step(self, turn: Running, q: Sequence) -> bool:
        if self._state.grow(turn, q, 1):
            return True
        turn.decode.remove(q.seq)
        self._note(turn, q, starved=True)
        return False

    def _note(self, turn: Running, q: Sequence, finish: Finish | None = None, starved: bool = False) -> None:
        turn.changed[q.seq] = ev.Progress(q.seq, q.epoch, q.output, q.kv, finish=finish, starved=starved)

    def _produced(self, turn: Running, q: Sequence, times: list[float]) -> None:
        first, q.sampled = q.output, True
        q.output += len(times)
        finish = Finish.STOP if q.output >= q.length else None
        self._sink(q.seq, q.epoch, first, times, finish)
        self._note(turn, q, finish)
        if finish is not None:
            turn.decode = [s for s in turn.decode if s != q.seq]
            self._state.drop(q)

    def _report(self, turn: Running, end: bool) -> None:
        event = turn.report(self._state.spec.instance, self._state.memory(), end, self.is_cold(turn.body.model))
        if end:
            self.turn = None
        self._state.say(event)
        if end:
            self._over(turn.id)
