"""Handles reports of success: one small function per kind, each updating only what the report names."""

from __future__ import annotations

from math import ceil

from aegaeon_scheduler.core.commands import Adopt, Load, SwapIn, SwapOut, Unload
from aegaeon_scheduler.core.domain import FailureKind, Finish, Memory, RejectCode
from aegaeon_scheduler.core.estimate import Estimate
from aegaeon_scheduler.core.events import CommandDone, Progress, TurnProgress
from aegaeon_scheduler.core.handoff import HandOff
from aegaeon_scheduler.core.life import Life
from aegaeon_scheduler.core.overtaking import correct
from aegaeon_scheduler.core.phases import (
    PLACE_DEVICE,
    PLACE_HOST,
    STAGE_DECODE,
    STAGE_HANDOFF,
    STAGE_PREFILL,
    STAGE_QUEUED,
)
from aegaeon_scheduler.core.policies import Policy
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.shared_weights import entered, hide, left
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence


class Reports:
    """Applies reports to the tables."""

    def __init__(self, pool: Pool, policy: Policy, life: Life, handoff: HandOff) -> None:
        self._pool = pool
        self._policy = policy
        self._life = life
        self._handoff = handoff

    def memory(self, inst: Instance, memory: Memory) -> None:
        """The book follows; who waited for memory is asked again."""
        inst.book.report(memory)
        inst.memory_due = False
        if self._pool.gated:
            self._life.pass_gate(inst)
        if inst.outs:
            self._handoff.retry_outs(inst)
        if inst.stuck or inst.wanted or inst.incoming:
            self._life.wake(inst)

    # -- commands that are done --------------------------------------------------------------------------------------

    def done(self, inst: Instance, event: CommandDone) -> None:
        """A Load, Unload or copy ended well."""
        issued = inst.commands.pop(event.id, None)
        if issued is not None:
            inst.book.release_grant(issued)
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
        model, weights = issued.model, issued.weights
        assert model is not None
        assert weights is not None
        entered(inst, weights)
        inst.failures.pop(model.name, None)
        if inst.weights.get(model.name) is weights:
            weights.ready = True
            if inst.turns and inst.turns[0].model is model:
                inst.moved_at = self._pool.now  # the turn has waited for it
            waiting = (s for s in inst.sequences.values() if s.model is model and s.stage is STAGE_QUEUED)
            inst.newcomer = next(waiting, inst.newcomer)
            self._life.wake(inst)
            self._pool.ask_pass()
        if self._pool.config.refine:
            estimate = self._pool.estimates.of(model.name, inst.device)
            estimate.saw_load(event.bytes_moved, event.seconds)

    def _unloaded(self, inst: Instance, issued: Issued) -> None:
        weights = issued.weights
        assert weights is not None
        inst.count -= 1
        left(inst, weights)
        if inst.weights.get(weights.model.name) is weights:
            hide(inst, weights.model.name)

    def _swapped_out(self, inst: Instance, issued: Issued, event: CommandDone) -> None:
        inst.count -= 1
        seq = issued.seq
        assert seq is not None
        self._saw_copy(inst, issued, event)
        if seq.copy != issued.id or seq.home is not inst:
            return
        seq.copy, seq.copying_out, seq.place = None, False, PLACE_HOST
        if event.kv_tokens:
            seq.kv_tokens = event.kv_tokens
        seq.project(seq.kv_tokens)
        seq.handle_of = issued.id
        if seq.stage is STAGE_HANDOFF:
            self._handoff.parked(seq)
        else:
            self._life.wake(inst)
            self._pool.ask_pass()

    def _swapped_in(self, inst: Instance, issued: Issued, event: CommandDone) -> None:
        seq = issued.seq
        assert seq is not None
        inst.book.report(event.memory)  # what joins a turn now is granted what the copy has left
        self._saw_copy(inst, issued, event)
        if seq.copy == issued.id and seq.home is inst:
            seq.copy = None
            if inst.turns and seq.id in inst.turns[0].members:
                inst.moved_at = self._pool.now  # the turn has waited for it
            self._handoff.adopted(seq)

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
        if issued is not None and len(issued.prefills) == 1:
            self._saw_reuse(inst, issued.prefills[0], event)
        for progress in event.progress:
            self._progress(inst, issued, progress)
        if issued is not None and event.end:
            self.reschedule(inst, issued)
            correct(inst, issued)
        self.memory(inst, event.memory)

    def _saw_reuse(self, inst: Instance, seq: Sequence, event: TurnProgress) -> None:
        """A prompt began: what has its KV and was not computed was in the engine's prefix cache."""
        kv_tokens = next((p.kv_tokens for p in event.progress if p.seq == seq.id), 0)
        if seq.chain and kv_tokens and not seq.kv_tokens and seq.home is inst:
            self._pool.prefixes.reused(seq, inst, kv_tokens - event.prefill_tokens)

    def _measure(self, inst: Instance, issued: Issued, event: TurnProgress) -> None:
        model = issued.model
        assert model is not None
        issued.steps_done += event.steps
        inst.moved_at = self._pool.now
        if issued.dropped and not event.steps:
            return
        if event.warm:
            inst.cold.discard(model.name)
        if event.warm or not issued.warm_up:
            inst.tried.add(model.name)
        self._seconds(inst, issued, model, event)
        if not self._pool.config.refine:
            return
        estimate = self._pool.estimates.of(model.name, inst.device)
        if event.first_s > 0.0 and not (event.steps and model.name in inst.decoded):
            estimate.saw_first(event.first_s, prefill=not event.steps)
        if event.steps:
            inst.decoded.add(model.name)
        if event.steps and event.decode_s > 0 and event.batch:
            estimate.saw_steps(event.context_tokens, event.batch, event.decode_s / event.steps)
        if event.prefill_tokens and event.prefill_s > 0:
            _learn_prefill(estimate, model, issued.prefills, event)

    def _seconds(self, inst: Instance, issued: Issued, model: Model, event: TurnProgress) -> None:
        """Where the compute lane's time went. What the first report of another model waited is the switch to it."""
        busy_s = event.decode_s + event.prefill_s + event.first_s
        inst.busy_s += busy_s
        inst.first_s += event.first_s
        if issued.warm_up:
            inst.ahead_s += event.first_s
            return  # a model's own seconds are those of its requests: its share of the engines follows from them
        model.busy_s += busy_s
        if event.steps or event.prefill_tokens:
            model.worked_at = self._pool.now
        if inst.running is model:
            inst.stall_s += event.wait_s
            model.stall_s += event.wait_s
            return
        inst.running = model
        inst.switches += 1
        inst.switch_s += event.wait_s
        model.switch_s += event.wait_s

    def _progress(self, inst: Instance, issued: Issued | None, p: Progress) -> None:
        seq = self._pool.sequences.get(p.seq)
        if seq is None or seq.home is not inst or not seq.opened:
            return
        if p.epoch != seq.epoch and not self._counts(seq, p):
            return
        self._tokens(seq, p.output_tokens)
        if p.kv_tokens > seq.kv_tokens:
            seq.hungry = 0
        seq.kv_tokens = p.kv_tokens
        if seq.copy is None and not seq.turns:
            seq.project(p.kv_tokens)
        if p.finish is not None:
            self._ended(inst, seq, p)
            return
        if p.starved:
            self._starved(inst, issued, seq)
        if seq.stage is STAGE_PREFILL and p.kv_tokens:
            seq.place = PLACE_DEVICE
            if p.output_tokens > seq.prefix_tokens:
                self._pool.prefixes.computed(seq, inst)
                self._handoff.prefilled(seq)

    def _counts(self, seq: Sequence, p: Progress) -> bool:
        """True when a report of another epoch is valid for this one."""
        if p.finish is not None and p.epoch < seq.epoch:
            self._life.lose(seq, "it ended under an older epoch")
            return False
        return seq.since <= p.epoch <= seq.epoch

    def _ended(self, inst: Instance, seq: Sequence, p: Progress) -> None:
        """Its engine ended it, and it alone. What raised there may go better elsewhere; all else would come again."""
        if p.finish is not Finish.ERROR:
            self._life.finished(seq)
            return
        seq.opened = False  # its blocks are free
        if p.failure is FailureKind.ENGINE:
            self._life.suspect(seq, f"{inst.id}: {p.reason}")
        elif p.failure is FailureKind.INVALID:
            self._life.reject(seq, RejectCode.INVALID, p.reason)
        else:
            self._life.reject(seq, RejectCode.ENGINE, p.reason or f"{inst.id} could not go on with it")

    def _tokens(self, seq: Sequence, output_tokens: int) -> None:
        new = output_tokens - seq.output_tokens
        if new <= 0:
            return
        if seq.failures and output_tokens >= seq.prefix_tokens + self._pool.config.clearing_tokens:
            self._life.clear(seq)
        slo, now = seq.model.config.slo, self._pool.now
        if slo.tbt_s > 0:
            first_in_time = (now - seq.promised_from - slo.ttft_s) / slo.tbt_s  # token k is on time when k >= this
            late = 0
            if first_in_time > seq.output_tokens:
                late = min(output_tokens, ceil(first_in_time)) - seq.output_tokens
        else:
            late = 0 if now <= seq.deadline() else new
        seq.model.answered_at = now
        seq.model.output_tokens += new
        seq.model.on_time += new - late
        seq.output(output_tokens)

    def _starved(self, inst: Instance, issued: Issued | None, seq: Sequence) -> None:
        seq.starved = True
        seq.hungry += seq.stage is STAGE_DECODE
        if issued is not None and issued.id in seq.turns:
            seq.turns.remove(issued.id)
            issued.members.pop(seq.id, None)
        if not seq.turns:
            seq.project(seq.kv_tokens)
        if seq.hungry > self._pool.config.max_hungry_turns:
            self._life.lose(seq, f"{seq.hungry} turns on {inst.id} brought it nothing")
        self._life.wake(inst)

    def _turn_over(self, inst: Instance, issued: Issued) -> None:
        del inst.commands[issued.id]
        inst.turns.remove(issued)
        inst.book.release_grant(issued)
        if issued.weights is not None:
            issued.weights.turns -= 1
            if not issued.warm_up:
                issued.weights.used = self._pool.tick()
        self._life.wake(inst)

    def reschedule(self, inst: Instance, issued: Issued) -> None:
        """The turn is over: its members are free for others, its unfinished prompts come first again."""
        for seq in issued.members.values():
            if issued.id in seq.turns:
                seq.turns.remove(issued.id)
            if not seq.turns and seq.copy is None:
                seq.project(seq.kv_tokens)
        for seq in reversed(issued.prefills):  # each comes first again
            if seq.home is inst and seq.stage is STAGE_PREFILL and not seq.turns:
                seq.hungry += 1
                self.again(inst, seq)

    def again(self, inst: Instance, seq: Sequence) -> None:
        """A prompt that did not get through is scheduled once more, a bounded number of times."""
        if seq.hungry > self._pool.config.max_hungry_turns:
            self._life.lose(seq, f"{seq.hungry} turns on {inst.id} brought it nothing")
        else:
            self._life.hold(seq)
            self._policy.unissued(inst, seq)


def _learn_prefill(estimate: Estimate, model: Model, prompts: tuple[Sequence, ...], event: TurnProgress) -> None:
    """Learn from a report of a part of one prompt, or of a pass over several."""
    kv_tokens = {p.seq: p.kv_tokens for p in event.progress}
    if len(prompts) == 1:
        done = kv_tokens.get(prompts[0].id, 0) - event.prefill_tokens
        if done >= 0:
            estimate.saw_prefill(event.prefill_tokens, event.prefill_s, done)
    elif model.pools:
        spans = [(seq.kv_tokens, kv_tokens[seq.id]) for seq in prompts if seq.id in kv_tokens]
        if sum(end - begin for begin, end in spans) == event.prefill_tokens:
            squares = sum(end * end - begin * begin for begin, end in spans)
            estimate.saw_together(event.prefill_tokens, squares, event.prefill_s)
