"""The life cycle of sequences: queued, lost, ended. Their memory is freed here, exactly once.

Only `_end` removes a sequence from the tables; this guarantees that each request ends exactly once.
"""

from __future__ import annotations

from math import inf

from aegaeon_scheduler.core.admission import Admission
from aegaeon_scheduler.core.book import blocks_for, least_slabs, slabs_of
from aegaeon_scheduler.core.cache_admission import KvGate
from aegaeon_scheduler.core.commands import Accept, Amend, Close, Reject, SequenceEnded, SequenceLost
from aegaeon_scheduler.core.domain import PASSING, POISONED, Footprint, GatewayId, Phase, RejectCode, Stage
from aegaeon_scheduler.core.events import Submitted
from aegaeon_scheduler.core.facts import Make
from aegaeon_scheduler.core.fetches import Fetches
from aegaeon_scheduler.core.nodes import apart, failed_beside
from aegaeon_scheduler.core.phases import ROLE_DECODE, ROLE_PREFILL, STAGE_LOST, STAGE_PREFILL, STAGE_QUEUED
from aegaeon_scheduler.core.policies import Policy
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence
from aegaeon_scheduler.core.timers import Timers


class Life:
    """Moves sequences from stage to stage. `dirty` collects instances whose compute lane may have new work."""

    def __init__(self, pool: Pool, policy: Policy, timers: Timers, fetches: Fetches) -> None:
        self._pool = pool
        self._fetches = fetches
        self._policy = policy
        self._timers = timers
        self._admission = Admission(pool, policy)
        self._kv_gate = KvGate(pool)
        self.dirty: dict[str, Instance] = {}

    def wake(self, inst: Instance) -> None:
        """Ask for the instance's next turn when the event is done."""
        self.dirty[inst.id] = inst

    # -- in ---------------------------------------------------------------------------------------------------------

    def submit(self, event: Submitted, model: Model) -> None:
        """A new sequence into the queue, or a Reject when it can never run or the queue is full."""
        pool = self._pool
        seq = Sequence(event, model, pool.tick())
        seq.cached = pool.prefixes.find(seq, pool.instances)
        model.asked_at = pool.now
        pool.sequences[seq.id] = seq
        self._count(seq.stage, seq, 1)
        refused = self._refusal(seq) or self._admission.refusal(seq) or self._no_promise(seq)
        if refused is not None:
            self.reject(seq, *refused)
            return
        self.accept(seq)
        self.queue(seq)

    def accept(self, seq: Sequence) -> None:
        """Tell its gateway that it is taken."""
        self._pool.out.append(Accept(seq.gateway, seq.id))

    def _refusal(self, seq: Sequence) -> tuple[RejectCode, str] | None:
        if self._pool.queued > self._pool.config.max_queue and not seq.prefix_tokens:
            return RejectCode.OVERLOADED, f"{self._pool.queued - 1} sequences are queued; try again later"
        return self.unfit(seq)

    def _no_promise(self, seq: Sequence) -> tuple[RejectCode, str] | None:
        """Admission that promises does not know what waits at the KV gate, so nothing does."""
        if self._pool.config.admission == "none" or not self._kv_gate.holds(seq):
            return None
        return RejectCode.OVERLOADED, f"{self._above_gate(seq)}; try again"

    def _above_gate(self, seq: Sequence) -> str:
        limit = f"{self._pool.config.kv_gate:.0%} of its room for KV"
        return f"each engine that may take {seq.model.name} is above {limit}"

    def unfit(self, seq: Sequence) -> tuple[RejectCode, str] | None:
        """Why no instance can ever run the sequence as it stands, or None."""
        fp, known_tokens = seq.model.footprint, seq.prompt_tokens + seq.prefix_tokens
        if fp is None:
            return None
        tokens = known_tokens if fp.pools else known_tokens + 1
        if tokens > fp.max_model_len:
            reason = f"{known_tokens} tokens do not fit {seq.model.name}, which takes {fp.max_model_len}"
            return RejectCode.TOO_LONG, reason
        able = self._pool.fleet.of(seq.model).makes
        without = (ROLE_DECODE,) if fp.pools else (ROLE_DECODE, ROLE_PREFILL)
        needed = ([i for i in able if i.role is not role] for role in without)
        if any(some and not any(_fits(i, fp, tokens) for i in some) for some in needed):
            handed = not fp.pools and any(i.role is ROLE_PREFILL for i in able)
            way = ", or no host tier on the way to a decode engine" if handed else ""
            return RejectCode.TOO_LONG, f"{known_tokens} tokens and the weights of {seq.model.name} fit no engine{way}"
        return None

    def queue(self, seq: Sequence) -> None:
        """Into the queue for prefill of prompt + prefix: on an instance that has the model, else held for one."""
        if seq.stage is not STAGE_QUEUED or seq.held_until in (0.0, inf):
            self.hold(seq)  # one that waits already goes on waiting
        self.stage(seq, STAGE_QUEUED)
        model = seq.model
        if seq.epoch > 1 and self._pool.now < self._pool.reattach_deadline:
            self._timers.await_reattach()
            model.waiting[seq.id] = seq
            return
        if not seq.admitted and self._kv_gate.holds(seq):
            model.waiting[seq.id] = self._pool.gated[seq.id] = seq
            return
        seq.admitted = True
        self._pool.gated.pop(seq.id, None)
        inst = self._policy.place(seq, self._pool.now)
        if inst is None:
            if self._failed(seq) and not self._anywhere(seq):
                self._model_failed(seq)
            else:
                model.waiting[seq.id] = seq
                self._fetches.demand(model)
            return
        seq.home = inst
        inst.sequences[seq.id] = inst.newcomer = seq
        self.wake(inst)

    def pass_gate(self, inst: Instance) -> None:
        """An engine's memory changed: queue those that waited at the KV gate and fit below it now."""
        for seq in self._kv_gate.passing(inst):
            seq.model.waiting.pop(seq.id, None)
            self.queue(seq)

    def model_failed(self, seq: Sequence, reason: str, blame: int = 1) -> None:
        """Its model or adapter cannot run where it is: elsewhere, or it ends with what is wrong with them."""
        if self._anywhere(seq):
            self.lose(seq, reason, blame)
        else:
            self._model_failed(seq)

    def _model_failed(self, seq: Sequence) -> None:
        self.reject(seq, RejectCode.MODEL_FAILED, self._failed(seq)[0])

    def _failed(self, seq: Sequence) -> list[str]:
        """The reasons why its adapter, then its model, failed."""
        adapters = (reasons[seq.adapter] for reasons in seq.model.without.values() if seq.adapter in reasons)
        return [*adapters, *seq.model.failed.values()]

    def hold(self, seq: Sequence) -> None:
        """Start to hold a sequence; without progress in time, it ends with an answer (see Admission)."""
        self._timers.hold(seq, self._admission.until(seq))

    def overdue(self, seq: Sequence) -> None:
        """Its wait is over: an answer, unless its model is on its way, or an engine for it may be here soon."""
        if seq.home is None and seq.model.expected_by > self._pool.now:
            self._timers.hold(seq, seq.model.expected_by)
            return
        until = self._admission.once_more(seq)
        if until is not None:
            self._timers.hold(seq, until)
            return
        waited_s = max(self._pool.now - seq.arrival, 0.0)
        places = self._pool.fleet.of(seq.model)
        if places.halved:
            why = apart(seq.model, places.apart[0]).reason
            self.reject(seq, RejectCode.UNSERVED, f"{seq.model.name} is not served: {why}")
            return
        reason = f"no engine became free for {seq.model.name} within {waited_s:.3g} s"
        if seq.id in self._pool.gated:
            reason = f"{self._above_gate(seq)}, for {waited_s:.3g} s"
        self.reject(seq, RejectCode.OVERLOADED, reason)

    def cut_off(self, seq: Sequence, reason: str) -> None:
        """Where its prompt is computed nothing can take it over any more. Other engines compute it again; where there
        are none it waits, for as long as a request may, for one that can: what is computed of it is kept."""
        if not self._anywhere(seq):
            self._model_failed(seq)
        elif seq.stage is STAGE_QUEUED or self._pool.fleet.of(seq.model).served:
            self.lose(seq, reason, blame=0)
        else:
            self.hold(seq)

    def started(self, inst: Instance, turn: Issued) -> None:
        """A turn is on the lane: its prompts are being prefilled."""
        for seq in turn.prefills:
            self.stage(seq, STAGE_PREFILL)

    def _anywhere(self, seq: Sequence) -> bool:
        """True when an instance may compute its prompt; without instances that compute prompts, a new one may."""
        instances = self._pool.instances.values()
        first = [inst for inst in instances if inst.role is not ROLE_DECODE] or instances
        model = seq.model
        sound = (i for i in first if i.phases.get(model.name) is not Phase.FAILED and not failed_beside(i, model))
        return not instances or any(not i.lacks(seq) for i in sound)

    # -- out --------------------------------------------------------------------------------------------------------

    def withdraw(self, seq: Sequence, reason: str) -> None:
        """Take it from every instance and queue; it stays in the tables."""
        self._policy.forget(seq)
        seq.model.waiting.pop(seq.id, None)
        self._pool.gated.pop(seq.id, None)
        self._pool.parked.pop(seq.id, None)
        for inst in (seq.home, seq.source):
            if inst is None:
                continue
            inst.sequences.pop(seq.id, None)
            self._leave_turns(inst, seq, reason)
            if inst is seq.source or seq.opened:
                self.close(inst, seq, reason)
            self.wake(inst)
        if seq.home is not None and seq.open_id is not None:
            seq.home.opens.pop(seq.open_id, None)
        seq.open_id = None
        seq.displace()

    def _leave_turns(self, inst: Instance, seq: Sequence, reason: str) -> None:
        """Turns name sequences without epoch: one that may come back here must not be in an old turn."""
        alive = seq.opened and self._pool.instances.get(inst.id) is inst
        for turn in inst.turns:
            if turn.members.pop(seq.id, None) is not None and alive:
                self._pool.send(inst, Amend(turn.id, leave=(seq.id,)), reason)

    def close(self, inst: Instance, seq: Sequence, reason: str) -> None:
        """Have an instance forget it; its next report shows what that freed."""
        if self._pool.instances.get(inst.id) is inst:
            self._pool.send(inst, Close(seq.id, seq.epoch), reason)
            inst.memory_due = True

    def finished(self, seq: Sequence) -> None:
        """The engine ended it and freed its blocks."""
        inst = seq.home
        seq.opened = False
        seq.model.ended += 1
        seq.model.answered_at = self._pool.now
        self._end(seq, "ended", computed_for=seq.gateway)
        if inst is not None:
            self.wake(inst)

    def cancel(self, seq: Sequence, reason: str) -> None:
        """End a sequence that has no reader any more."""
        self._end(seq, reason)

    def reject(self, seq: Sequence, code: RejectCode, reason: str) -> None:
        """End a sequence with an answer."""
        retry = self._pool.config.retry_after_s if code in PASSING else 0.0
        seq.model.poisoned += code in POISONED
        self._end(seq, reason, Reject(seq.gateway, seq.id, code, reason, retry))

    def lose(self, seq: Sequence, reason: str, blame: int = 1) -> None:
        """Its KV is gone: queue it again if no engine ever ran it, else its gateway is to submit it again.

        `blame` is 0 when the sequence can have had no part in it (it did not run).
        """
        if seq.stage is STAGE_LOST:
            return
        ran = seq.stage is not STAGE_QUEUED
        self.withdraw(seq, reason)
        if not ran:
            self.queue(seq)
            return
        seq.failures += blame
        if seq.failures > self._pool.config.max_failures:
            self.reject(seq, RejectCode.ENGINE, f"given up after {seq.failures} losses: {reason}")
            return
        self.stage(seq, STAGE_LOST)
        self._timers.lost(seq)
        self._pool.out.append(SequenceLost(seq.gateway, seq.id, seq.epoch, reason, blameless=not blame))

    def suspect(self, seq: Sequence, reason: str) -> None:
        """Lose a sequence that ran when an engine died or a turn failed; after several of these in a row it runs alone.

        A sequence that fails once more although it ran alone is rejected: it is the likely cause.
        """
        if seq.stage is STAGE_LOST:
            return
        seq.suspected += 1
        if seq.id in self._pool.suspects:
            self.reject(
                seq, RejectCode.ENGINE, f"given up after {seq.suspected} failures, the last one alone: {reason}"
            )
            return
        if seq.suspected >= self._pool.config.suspect_after:
            self._pool.suspects[seq.id] = seq
        self.lose(seq, reason)

    def clear(self, seq: Sequence) -> None:
        """Clear a sequence that made progress: it is not the cause of earlier failures."""
        seq.failures = seq.suspected = 0
        self._pool.suspects.pop(seq.id, None)

    def _end(
        self, seq: Sequence, reason: str, answer: Reject | None = None, computed_for: GatewayId | None = None
    ) -> None:
        if seq.home is not None:
            seq.home.ended += 1
        self.withdraw(seq, reason)
        if answer is not None:
            self._pool.out.append(answer)
        self._count(seq.stage, seq, -1)
        del self._pool.sequences[seq.id]
        self._pool.suspects.pop(seq.id, None)
        self._pool.out.append(SequenceEnded(seq.id, seq.epoch, computed_for))

    def stage(self, seq: Sequence, stage: Stage) -> None:
        """Change the stage and the counters that follow it."""
        self._count(seq.stage, seq, -1)
        seq.stage = stage
        self._count(stage, seq, 1)

    def _count(self, stage: Stage, seq: Sequence, by: int) -> None:
        if stage is STAGE_QUEUED:
            self._pool.queued += by
            seq.model.queued += by
        elif stage is not STAGE_LOST:
            seq.model.running += by


def _fits(inst: Make, fp: Footprint, tokens: int) -> bool:
    """True when an empty instance holds a sequence of this length, and can hand it off if that is its role."""
    handed = inst.role is ROLE_PREFILL and not fp.pools
    if handed and slabs_of(fp, blocks_for(fp, tokens), inst.slab_bytes) > inst.host_slabs:
        return False
    return least_slabs(fp, tokens, inst.slab_bytes) <= inst.slabs
