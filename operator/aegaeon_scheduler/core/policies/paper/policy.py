"""Algorithms 1 and 2 behind the Policy protocol. Unified instances run prefill groups first at turn boundaries, at
most MAX_GPSIZE prompts between two decode turns, so that neither side starves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from aegaeon_scheduler.core.config import PaperSettings
from aegaeon_scheduler.core.domain import InstanceId
from aegaeon_scheduler.core.phases import ROLE_DECODE, ROLE_PREFILL, STAGE_PREFILL, STAGE_QUEUED
from aegaeon_scheduler.core.policies import Move, Proposal
from aegaeon_scheduler.core.policies.paper.decode import Batch, WorkList, load_ahead_s
from aegaeon_scheduler.core.policies.paper.prefill import Group, PrefillQueue
from aegaeon_scheduler.core.policies.paper.quota import steps_of
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence, Weights


@dataclass(slots=True, eq=False, repr=False)
class _Engine:
    """The policy's state of an instance."""

    queue: PrefillQueue = field(default_factory=PrefillQueue)
    work: WorkList = field(default_factory=WorkList)
    streak: int = 0


@dataclass(slots=True, eq=False, repr=False)
class _ModelState:
    """The policy's state of a model: the group that may still be joined, and its batches everywhere."""

    group: Group | None = None
    batches: list[Batch] = field(default_factory=list)


def _near(inst: Instance, seq: Sequence) -> bool:
    """Returns whether a sequence's KV can be handed off to an instance, which is done within a node."""
    return seq.home is None or seq.home.node == inst.node


class PaperPolicy:
    """`policy: paper`."""

    name = "paper"

    def __init__(self, pool: Pool, settings: PaperSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._estimates = pool.estimates
        self._engines: dict[InstanceId, _Engine] = {}
        self._models: dict[Model, _ModelState] = {}  # by the row: a name may come to stand for another model

    def instance_down(self, inst: Instance) -> None:
        """See Policy."""
        self._engines.pop(inst.id, None)

    def _of(self, inst: Instance) -> _Engine:
        state = self._engines.get(inst.id)
        if state is None:
            state = self._engines[inst.id] = _Engine()
        return state

    def _model(self, model: Model) -> _ModelState:
        state = self._models.get(model)
        if state is None:
            state = self._models[model] = _ModelState()
        return state

    # -- Algorithm 1 ------------------------------------------------------------------------------------------------

    def place(self, seq: Sequence, now: float) -> Instance | None:
        """See Policy."""
        return self._place_prompt(seq) if seq.stage is STAGE_QUEUED else self._place_decode(seq)

    def _place_prompt(self, seq: Sequence) -> Instance | None:
        """Join the model's open group, else a new group where all pending groups end first."""
        state = self._model(seq.model)
        group = state.group
        if group is None or group.joined >= self._settings.max_gpsize or not group.inst.takes(seq):
            inst = self._least_loaded(seq)
            if inst is None:
                return None
            group = state.group = Group(seq.model, inst, self._of(inst).queue, self._switch_s(inst, seq.model))
            group.queue.add_group(group)
        tokens = seq.prompt_tokens + seq.prefix_tokens
        cost = self._estimates.of(seq.model.name, group.inst.device).prefill_s(tokens)
        group.queue.join(group, seq, cost)
        seq.batch = group
        return group.inst

    def _least_loaded(self, seq: Sequence) -> Instance | None:
        """Where all pending groups end first. KV is handed off within a node, so the prefill instance decides which can
        decode: a model that decodes on some nodes waits half its TTFT for them, where else its weights would take a
        further place, and among equals the node is chosen that has most room to decode."""
        model = seq.model
        nodes = {batch.inst.node for batch in self._model(model).batches}
        loads: dict[str, float] = {}
        best, best_key = None, (0.0, 0.0)
        for inst in self._pool.instances.values():
            if inst.role is not ROLE_DECODE and inst.takes(seq):
                apart = nodes and inst.role is ROLE_PREFILL and inst.node not in nodes
                apart_s = model.config.slo.ttft_s / 2 if apart else 0.0
                key = (self._of(inst).queue.load_s + self._switch_s(inst, model) + apart_s, self._decoding(inst, loads))
                if best is None or key < best_key:
                    best, best_key = inst, key
        return best

    def _decoding(self, inst: Instance, loads: dict[str, float]) -> float:
        """Load of the instance that decodes what is prefilled here: itself, or the least loaded of its node. `loads`:
        of the nodes of this arrival so far."""
        if inst.role is not ROLE_PREFILL:
            return self._of(inst).work.load
        load = loads.get(inst.node)
        if load is None:
            load = min((self._of(other).work.load for other in inst.partners), default=0.0)
            loads[inst.node] = load
        return load

    def _decoders(self) -> Iterator[Instance]:
        return (inst for inst in self._pool.instances.values() if inst.role is not ROLE_PREFILL)

    def _switch_s(self, inst: Instance, model: Model) -> float:
        return load_ahead_s(inst, model, self._estimates)

    # -- Algorithm 2 ------------------------------------------------------------------------------------------------

    def refusal(self, seq: Sequence, now: float) -> str | None:
        """See Policy. What is queued is in the order of arrival and bounded by time alone."""
        return None

    def _place_decode(self, seq: Sequence) -> Instance | None:
        """A batch of its model with room on the least loaded instance, else a new batch on the least loaded one."""
        home = seq.home if seq.home is not None and seq.home.role is not ROLE_PREFILL else None
        batch = self._batch_with_room(seq, home)
        if batch is None:
            inst = home or self._decode_home(seq)
            if inst is None:
                return None
            batch = Batch(seq.model, inst, self._of(inst).work)
            batch.work.add(batch)
            self._model(seq.model).batches.append(batch)
        batch.members[seq.id] = seq
        seq.batch = batch
        self._weigh(batch)
        return batch.inst

    def _batch_with_room(self, seq: Sequence, home: Instance | None) -> Batch | None:
        fits = [
            b
            for b in self._model(seq.model).batches
            if (b.inst is home if home else _near(b.inst, seq)) and b.inst.takes(seq) and self._has_room(b, seq)
        ]
        return min(fits, key=lambda b: (b.work.load, b.inst.order), default=None)

    def _has_room(self, batch: Batch, seq: Sequence) -> bool:
        if len(batch.members) >= batch.inst.max_batch:
            return False
        fp = batch.model.fp
        blocks = -(-(batch.context_tokens() + seq.kv_tokens) // fp.kv_block_tokens) + 2 * (len(batch.members) + 1)
        room = (batch.inst.slabs - fp.weight_slabs) * batch.inst.slab_bytes
        return not batch.members or blocks * fp.kv_block_bytes <= room

    def _decode_home(self, seq: Sequence) -> Instance | None:
        model = seq.model
        able = [i for i in self._decoders() if i.takes(seq) and _near(i, seq)]
        return min(able, key=lambda i: (self._of(i).work.load + self._switch_s(i, model) * 0.1, i.order), default=None)

    def _weigh(self, batch: Batch) -> None:
        estimate = self._estimates.of(batch.model.name, batch.inst.device)
        step = estimate.step_s(batch.context_tokens(), len(batch.members))
        batch.work.weigh(batch, step / max(1e-9, batch.model.config.slo.tbt_s))

    # -- both -------------------------------------------------------------------------------------------------------

    def forget(self, seq: Sequence) -> None:
        """See Policy."""
        holder, seq.batch = seq.batch, None
        if isinstance(holder, Group):
            self._leave_group(holder, seq)
        elif isinstance(holder, Batch) and holder.members.pop(seq.id, None) is not None:
            if holder.members:
                self._weigh(holder)
            else:
                holder.work.drop(holder)
                self._model(holder.model).batches.remove(holder)
        state = self._models.get(seq.model)
        if state is not None and state.group is None and not state.batches:
            del self._models[seq.model]

    def _leave_group(self, group: Group, seq: Sequence) -> None:
        state = self._model(group.model)
        if group.queue.remove(group, seq) and state.group is group:
            state.group = None

    def propose(self, inst: Instance, now: float, barred: Collection[Proposal]) -> Proposal | None:
        """Prefill groups first, then the round. A prompt that there is no room for holds up the prompts behind it."""
        state = self._of(inst)
        decode = self._propose_decode(inst, barred) if state.streak >= self._settings.max_gpsize else None
        if decode is not None:
            return decode
        seq = state.queue.head()
        if seq is not None and not any(proposal.prefill for proposal in barred):
            behind = len(state.queue.groups) - 1
            return Proposal(seq.model, (seq,), [], 0, f"prefill first come first served, {behind} groups behind it")
        return self._propose_decode(inst, barred)

    def _propose_decode(self, inst: Instance, barred: Collection[Proposal]) -> Proposal | None:
        work = self._of(inst).work
        for _ in range(2):
            while work.round:
                batch = work.round[0]
                ready = [s for s in batch.members.values() if not s.copying_out]
                if ready and not any(proposal.batch is batch for proposal in barred):
                    return self._turn(work, batch, ready)
                work.round.popleft()
            if not work.batches:
                return None
            work.start_round(inst, self._estimates, self._settings)
        return None

    def _turn(self, work: WorkList, batch: Batch, ready: list[Sequence]) -> Proposal:
        estimate = self._estimates.of(batch.model.name, batch.inst.device)
        context = sum(s.kv_tokens for s in ready)
        quota_s = work.quota_s(batch, self._estimates)
        steps = steps_of(quota_s, estimate.step_s(context, len(ready)), self._settings.max_turn_steps)
        reason = f"turn of {quota_s:.3g} s, {len(work.batches)} batches in the round"
        return Proposal(batch.model, (), ready, steps, reason, batch)

    def outranks(self, inst: Instance, seq: Sequence, turn: Issued, now: float) -> bool:
        """See Policy. Turns have their quota."""
        return False

    def issued(self, inst: Instance, proposal: Proposal, turn: Issued) -> None:
        """See Policy."""
        state = self._of(inst)
        if proposal.prefill:
            state.streak += 1
            for seq in proposal.prefill:
                group, seq.batch = seq.batch, None
                assert isinstance(group, Group)
                self._leave_group(group, seq)
            return
        assert isinstance(proposal.batch, Batch)
        state.streak = 0
        if state.work.round and state.work.round[0] is proposal.batch:
            state.work.round.popleft()
        self._weigh(proposal.batch)

    def reshaped(self, model: Model) -> None:
        """See Policy. Nothing of it is kept."""

    def check(self, now: float) -> list[str]:
        """See Policy."""
        return []

    def unissued(self, inst: Instance, seq: Sequence) -> None:
        """See Policy."""
        if seq.batch is not None:
            return
        group = Group(seq.model, inst, self._of(inst).queue, 0.0)
        group.joined = self._settings.max_gpsize
        cost = self._estimates.of(seq.model.name, inst.device).prefill_s(seq.prompt_tokens)
        group.queue.put_back(group, seq, cost)
        seq.batch = group

    def unload_order(self, inst: Instance, idle: list[Weights]) -> list[Weights]:
        """Models without work here by least recent use; then those whose turn in the round is farthest away."""
        state = self._of(inst)
        turns = {g.model.name: i for i, g in reversed(list(enumerate(state.queue.groups)))}
        ahead = list(state.work.round) + [b for b in state.work.batches if b not in state.work.round]
        for i, batch in enumerate(ahead):
            turns.setdefault(batch.model.name, i + len(state.queue.groups))
        return sorted(idle, key=lambda w: (w.model.name in turns, -turns.get(w.model.name, 0), w.used))

    def past_host(self, inst: Instance) -> bool:
        """See Policy. The host cache is inclusive: what was loaded last is in it."""
        return False

    def preemption_order(self, inst: Instance, sequences: list[Sequence], now: float) -> list[Sequence]:
        """Most slack first; prompts that wait for their first decode turn last."""
        return sorted(sequences, key=lambda s: (s.stage is STAGE_PREFILL, -s.deadline(), s.order))

    def pool_pass(self, now: float) -> list[Move]:
        """The paper places at arrival only."""
        return []
