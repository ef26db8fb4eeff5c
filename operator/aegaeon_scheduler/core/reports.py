"""What the reports of instances change: one small function per kind, each touching only what it names."""

from __future__ import annotations

from aegaeon_scheduler.core.commands import Adopt, Load, SwapIn, SwapOut, Turn, Unload
from aegaeon_scheduler.core.events import CommandDone, CommandFailed, CommandSkipped, Progress, TurnProgress
from aegaeon_scheduler.core.life import Life
from aegaeon_scheduler.core.model import FailureKind, Memory, Phase, Place
from aegaeon_scheduler.core.policies import Policy
from aegaeon_scheduler.core.residency import Residency
from aegaeon_scheduler.core.state import Instance, Issued, Model, Pool, Sequence, Stage


class Reports:
    """Applies reports to the tables."""

    def __init__(self, pool: Pool, policy: Policy, residency: Residency, life: Life) -> None:
        self._pool = pool
        self._policy = policy
        self._residency = residency
        self._life = life

    def memory(self, inst: Instance, memory: Memory) -> None:
        """The book follows; who waited for memory is asked again."""
        inst.book.report(memory)
        inst.memory_due = False
        if inst.outs:
            self._residency.retry_outs(inst)
        if inst.stuck or inst.wanted or inst.incoming:
            self._life.wake(inst)

    # -- commands that are done --------------------------------------------------------------------------------------

    def done(self, inst: Instance, event: CommandDone) -> None:
        """A Load, Unload or copy ended well."""
        issued = inst.commands.pop(event.id, None)
        if issued is not None:
            inst.book.settle(issued)
            body = issued.body
            if isinstance(body, Load):
                self._loaded(inst, issued, event)
            elif isinstance(body, Unload):
                self._unloaded(inst, issued)
            elif isinstance(body, SwapOut):
                self._swapped_out(inst, issued, event)
            elif isinstance(body, (SwapIn, Adopt)):
                self._swapped_in(inst, issued, event)
        self.memory(inst, event.memory)

    def _loaded(self, inst: Instance, issued: Issued, event: CommandDone) -> None:
        model = issued.model
        assert model is not None
        inst.book.weights += 0 if model.withdrawn else model.fp.weight_slabs
        inst.failures.pop(model.name, None)
        weights = inst.weights.get(model.name)
        if weights is not None and weights.load == issued.id:
            weights.ready = True
            self._life.wake(inst)
            self._pool.ask_pass()
        if self._pool.config.refine:
            estimate = self._pool.estimates.of(model.name, inst.device)
            estimate.saw_load(event.bytes_moved, event.seconds)

    def _unloaded(self, inst: Instance, issued: Issued) -> None:
        model = issued.model
        assert model is not None
        inst.count -= 1
        inst.book.weights -= 0 if model.withdrawn else model.fp.weight_slabs
        weights = inst.weights.get(model.name)
        if weights is not None and weights.unload == issued.id:
            del inst.weights[model.name]

    def _swapped_out(self, inst: Instance, issued: Issued, event: CommandDone) -> None:
        inst.count -= 1
        seq = issued.seq
        assert seq is not None
        self._saw_copy(inst, issued, event)
        if seq.copy != issued.id or seq.home is not inst:
            return
        seq.copy, seq.copying_out, seq.place = None, False, Place.HOST
        if event.kv_tokens:
            seq.kv_tokens = event.kv_tokens
        seq.planned_kv = seq.kv_tokens
        seq.handle_of = issued.id
        if seq.stage is Stage.HANDOFF:
            self._life.parked(seq)
        else:
            self._life.wake(inst)
            self._pool.ask_pass()

    def _swapped_in(self, inst: Instance, issued: Issued, event: CommandDone) -> None:
        seq = issued.seq
        assert seq is not None
        self._saw_copy(inst, issued, event)
        if seq.copy == issued.id and seq.home is inst:
            seq.copy = None
            self._life.adopted(seq)

    def _saw_copy(self, inst: Instance, issued: Issued, event: CommandDone) -> None:
        if self._pool.config.refine and issued.model is not None:
            self._pool.estimates.of(issued.model.name, inst.device).saw_kv(event.bytes_moved, event.seconds)

    # -- turns -------------------------------------------------------------------------------------------------------

    def turn(self, inst: Instance, event: TurnProgress) -> None:
        """A step report: counts, measurements, and at the end the lane's place."""
        issued = inst.commands.get(event.turn)
        if issued is not None:
            self._measure(inst, issued, event)
            if event.end:
                self._turn_over(inst, issued)
        inst.book.report(event.memory)
        for progress in event.progress:
            self._progress(inst, issued, progress)
        if issued is not None and event.end:
            self._replan(inst, issued)
        self.memory(inst, event.memory)

    def _measure(self, inst: Instance, issued: Issued, event: TurnProgress) -> None:
        model = issued.model
        assert model is not None
        issued.steps_done += event.steps
        if inst.running is not model:
            inst.running = model
            inst.switches += 1
        inst.busy_s += event.decode_s + event.prefill_s
        inst.stall_s += event.wait_s
        model.stall_s += event.wait_s
        if not self._pool.config.refine:
            return
        estimate = self._pool.estimates.of(model.name, inst.device)
        if event.steps and event.decode_s > 0 and event.batch:
            estimate.saw_steps(event.context_tokens, event.batch, event.decode_s / event.steps)
        if event.prefill_tokens and event.prefill_s > 0 and len(issued.prefills) == 1:
            estimate.saw_prefill(event.prefill_tokens, event.prefill_s)

    def _progress(self, inst: Instance, issued: Issued | None, p: Progress) -> None:
        seq = self._pool.sequences.get(p.seq)
        if seq is None or seq.home is not inst or not seq.opened:
            return
        if p.finish is not None and p.epoch < seq.epoch:
            self._life.lose(seq, "it ended under an older epoch")
            return
        if not seq.since <= p.epoch <= seq.epoch:
            return
        self._tokens(seq, p.output_tokens)
        if p.kv_tokens > seq.kv_tokens:
            seq.hungry = 0
        seq.kv_tokens = p.kv_tokens
        if not seq.turns and seq.copy is None:
            seq.planned_kv = p.kv_tokens
        if p.finish is not None:
            self._life.finished(seq)
            return
        if p.starved:
            self._starved(inst, issued, seq)
        if seq.stage is Stage.PREFILL and p.kv_tokens:
            seq.place = Place.DEVICE
            if p.output_tokens > seq.prefix_tokens:
                self._life.prefilled(seq)

    def _tokens(self, seq: Sequence, output_tokens: int) -> None:
        new = output_tokens - seq.output_tokens
        if new <= 0:
            return
        slo, now = seq.model.config.slo, self._pool.now
        if slo.tbt_s > 0:
            first_in_time = (now - seq.arrival - slo.ttft_s) / slo.tbt_s  # token k is on time when k >= this
            late = min(output_tokens, max(seq.output_tokens, -int(-first_in_time // 1))) - seq.output_tokens
        else:
            late = 0 if now <= seq.deadline() else new
        seq.model.output_tokens += new
        seq.model.on_time += new - late
        seq.output_tokens = output_tokens

    def _starved(self, inst: Instance, issued: Issued | None, seq: Sequence) -> None:
        seq.starved = True
        seq.hungry += seq.stage is Stage.DECODE
        if issued is not None and issued.id in seq.turns:
            seq.turns.remove(issued.id)
            issued.members.pop(seq.id, None)
        if not seq.turns:
            seq.planned_kv = seq.kv_tokens
        if seq.hungry > self._pool.config.max_hungry_turns:
            self._life.lose(seq, f"{seq.hungry} turns on {inst.id} brought it nothing")
        self._life.wake(inst)

    def _turn_over(self, inst: Instance, issued: Issued) -> None:
        del inst.commands[issued.id]
        inst.turns.remove(issued)
        inst.book.settle(issued)
        if issued.weights is not None:
            issued.weights.turns -= 1
            issued.weights.used = self._pool.tick()
        self._life.wake(inst)

    def _replan(self, inst: Instance, issued: Issued) -> None:
        """The turn is over: its members are free for others, its unfinished prompts come first again."""
        for seq in issued.members.values():
            if issued.id in seq.turns:
                seq.turns.remove(issued.id)
            if not seq.turns and seq.copy is None:
                seq.planned_kv = seq.kv_tokens
        for seq in issued.prefills:
            if seq.home is inst and seq.stage is Stage.PREFILL and not seq.turns:
                seq.hungry += 1
                self.again(inst, seq)

    def again(self, inst: Instance, seq: Sequence) -> None:
        """A prompt that did not get through is planned once more, a bounded number of times."""
        if seq.hungry > self._pool.config.max_hungry_turns:
            self._life.lose(seq, f"{seq.hungry} turns on {inst.id} brought it nothing")
        else:
            self._policy.unissued(inst, seq)

    # -- failures ----------------------------------------------------------------------------------------------------

    def failed(self, inst: Instance, event: CommandFailed) -> None:
        """A command failed; what it was granted is free again, what it was for is tried again or given up."""
        opened = inst.opens.pop(event.id, None)
        if opened is not None and opened.open_id == event.id:
            opened.opened = False
            blame = 0 if event.kind is FailureKind.STALE else 1
            self._life.lose(opened, f"{inst.id} refused it: {event.reason}", blame)
        issued = inst.commands.pop(event.id, None)
        if issued is not None:
            inst.book.settle(issued)
            self._undo(inst, issued, event.kind, event.reason)
            self._life.wake(inst)
        if event.memory is not None:
            self.memory(inst, event.memory)

    def skipped(self, inst: Instance, event: CommandSkipped) -> None:
        """It never ran: as if it had not been sent."""
        issued = inst.commands.pop(event.id, None)
        if issued is not None:
            inst.book.settle(issued)
            self._undo(inst, issued, None, f"command {event.because} did not succeed")
            self._life.wake(inst)

    def _undo(self, inst: Instance, issued: Issued, kind: FailureKind | None, reason: str) -> None:
        body = issued.body
        if isinstance(body, Turn):
            self._turn_failed(inst, issued, kind, reason)
        elif isinstance(body, Load):
            self._load_failed(inst, issued, kind, reason)
        elif isinstance(body, Unload):
            self._unload_failed(inst, issued, kind)
        elif issued.seq is not None:
            self._copy_failed(inst, issued, issued.seq, kind, reason)

    def _turn_failed(self, inst: Instance, issued: Issued, kind: FailureKind | None, reason: str) -> None:
        inst.turns.remove(issued)
        if issued.weights is not None:
            issued.weights.turns -= 1
        if kind in (FailureKind.ENGINE, FailureKind.UNKNOWN):
            for seq in list(issued.members.values()):
                self._life.lose(seq, f"turn failed on {inst.id}: {reason}")
        self._replan(inst, issued)

    def _load_failed(self, inst: Instance, issued: Issued, kind: FailureKind | None, reason: str) -> None:
        model = issued.model
        assert model is not None
        weights = inst.weights.get(model.name)
        if weights is not None and weights.load == issued.id:
            del inst.weights[model.name]
        if kind is None:
            return
        failures = inst.failures[model.name] = inst.failures.get(model.name, 0) + 1
        if failures > self._pool.config.max_failures:
            self.model_failed(inst, model, reason)

    def model_failed(self, inst: Instance, model: Model, reason: str) -> None:
        """The model cannot run here: its sequences go elsewhere."""
        inst.phases[model.name] = Phase.FAILED
        model.failed[inst.id] = reason
        for seq in [s for s in inst.sequences.values() if s.model is model]:
            self._life.lose(seq, f"{model.name} failed on {inst.id}: {reason}")
        self._life.place_waiting(model)

    def _unload_failed(self, inst: Instance, issued: Issued, kind: FailureKind | None) -> None:
        inst.count -= 1
        assert issued.model is not None
        weights = inst.weights.get(issued.model.name)
        if weights is None or weights.unload != issued.id:
            return
        if kind is FailureKind.UNKNOWN:  # it is not there: as good as done
            inst.book.weights -= issued.model.fp.weight_slabs
            del inst.weights[issued.model.name]
            return
        weights.unload = None
        failures = inst.failures[issued.model.name] = inst.failures.get(issued.model.name, 0) + 1
        if failures > self._pool.config.max_failures:
            self.model_failed(inst, issued.model, "its weights cannot be unloaded")
            del inst.weights[issued.model.name]  # no longer asked to give way; the book goes on counting it

    def _copy_failed(
        self, inst: Instance, issued: Issued, seq: Sequence, kind: FailureKind | None, reason: str
    ) -> None:
        if isinstance(issued.body, SwapOut):
            inst.count -= 1
        if seq.copy != issued.id or seq.home is not inst:
            return
        seq.copy, seq.copying_out = None, False
        if kind is None:
            self._retry_copy(inst, seq)
            return
        seq.failures += 1
        retry = kind in (FailureKind.NO_MEMORY, FailureKind.CANCELLED, FailureKind.STALE)
        if retry and seq.failures <= self._pool.config.max_failures:
            self._retry_copy(inst, seq)
        else:
            self._life.lose(seq, f"copy failed on {inst.id}: {reason}")

    def _retry_copy(self, inst: Instance, seq: Sequence) -> None:
        """Copies in are issued again with the next turn; a hand-off waits for the next report."""
        if seq.stage is Stage.HANDOFF and seq.source is None and seq.place is Place.DEVICE:
            inst.outs.append(seq)
