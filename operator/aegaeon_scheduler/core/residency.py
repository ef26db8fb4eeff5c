"""Turns proposals into commands in an order in which none ever waits for memory.

A load behind an unload is pipelined with `after`. Memory that depends on swap-outs is granted only when a report shows
it free; until then the proposal waits and the policy is asked again.
"""

from __future__ import annotations

from aegaeon_scheduler.core.book import blocks_for
from aegaeon_scheduler.core.commands import Amend, Close, Load, Open, PrefillPart, Turn
from aegaeon_scheduler.core.copies import Copies
from aegaeon_scheduler.core.domain import CommandId
from aegaeon_scheduler.core.policies import Policy, Proposal
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.room import Fitted, Room
from aegaeon_scheduler.core.shared_weights import show, slabs_to_load, twin, unloads_of
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence, SharedWeights, Weights

REPORT_STEPS = 8
"""after which a sidecar reports a turn by itself: so many times as many while turns are longer"""


class Residency:
    """Issues turns and loads of one pool, with the copies they need."""

    def __init__(self, pool: Pool, policy: Policy, room: Room, copies: Copies) -> None:
        self._pool = pool
        self._policy = policy
        self._room = room
        self._copies = copies

    def run(self, inst: Instance, proposal: Proposal) -> Issued | None:
        """Issue the proposal's turn and all that it needs; None when room must be made first (inst.stuck is set)."""
        inst.stuck = False
        fitted = self._room.fit(inst, proposal)
        if fitted is None:
            inst.stuck = True
            self._load_ahead(inst, proposal)
            return None
        for seq in proposal.prefill:
            if not seq.opened:
                self.open(inst, seq, proposal.reason)
        after = self.ready_weights(inst, proposal.model, proposal.reason, fitted.unloads)
        for seq in fitted.growth.away:
            self._copies.bring_in(inst, seq, proposal.reason, fitted.waits, fitted.tight)
        return self._turn(inst, proposal, fitted, after + fitted.waits)

    def _load_ahead(self, inst: Instance, proposal: Proposal) -> None:
        """Where unloads alone bring room for the weights, they come in while the KV of others still goes out."""
        if not inst.count or proposal.model.name in inst.weights:
            return
        unloads = unloads_of(inst)
        if inst.book.free() + sum(unloads.values()) >= slabs_to_load(inst, proposal.model):
            self.ready_weights(inst, proposal.model, proposal.reason, unloads)

    def open(self, inst: Instance, seq: Sequence, reason: str) -> None:
        """Tell an instance of a sequence; the driver adds the prompt."""
        held = inst.held.pop(seq.id, None)
        if held is not None:
            self._pool.unhold(inst.id, seq.id)
            self._pool.send(inst, Close(seq.id, held.epoch), "an older copy that is not gone on with")
        if seq.source is None:
            seq.handle_of = None  # a handle is good for one epoch
        id = self._pool.send(inst, Open(seq.id, seq.epoch, seq.model.name), reason)
        if seq.open_id is not None:
            inst.opens.pop(seq.open_id, None)
        inst.opens[id] = seq
        seq.open_id = id
        seq.opened = True

    def ready_weights(
        self, inst: Instance, model: Model, reason: str, unloads: dict[CommandId, int]
    ) -> tuple[CommandId, ...]:
        """The commands that a turn of this model waits for: none when resident, else its load (issued here if need
        be)."""
        weights = inst.weights.get(model.name)
        if weights is None or weights.unload is not None:
            after = tuple(unloads)
            if weights is not None and weights.unload is not None and weights.unload not in unloads:
                after += (weights.unload,)
            weights = self._load(inst, model, f"{model.name} is next: {reason}", after, unloads)
        weights.used = self._pool.tick()
        return () if weights.ready or weights.load is None else (weights.load,)

    def _load(
        self, inst: Instance, model: Model, why: str, after: tuple[CommandId, ...], unloads: dict[CommandId, int]
    ) -> Weights:
        """Issue its load: into slabs of its own, or into those of a twin once that is in."""
        partner = twin(inst, model)
        shared = SharedWeights(model.fp.weight_slabs) if partner is None else partner.shared
        slabs = shared.slabs if partner is None else 0
        if partner is not None and not partner.ready and partner.load is not None:
            after += (partner.load,)
        name = None if partner is None else partner.model.name
        body = Load(model.name, slabs, self._policy.past_host(inst), name, model.config.identity)
        load = self._pool.issue(inst, body, why, after, model=model)
        inst.book.grant_load(load.id, slabs, dict(unloads))
        load.weights = show(inst, Weights(model, shared, load.id))
        inst.loads += 1
        model.loads += 1
        return load.weights

    def join(self, inst: Instance, seq: Sequence) -> None:
        """Let a ready sequence join the outstanding turns of its batch at their next token boundary; a suspect none."""
        if seq.id in self._pool.suspects:
            return
        fp, batch = seq.model.fp, seq.batch
        for turn in inst.turns:
            left = turn.steps - turn.steps_done
            if turn.model is not seq.model or turn.prefills or turn.alone or left <= 1 or batch is not turn.batch:
                continue
            if seq.id in turn.members or len(turn.members) >= inst.max_batch:
                continue
            grow = min(left, max(1, seq.max_tokens - seq.output_tokens))
            blocks = blocks_for(fp, seq.projected_kv + grow) - blocks_for(fp, seq.projected_kv)
            slabs = inst.book.slabs_for(fp, blocks)
            if slabs > inst.book.free():
                return
            inst.book.grant_kv(turn, fp, blocks)
            self._pool.send(inst, Amend(turn.id, join=(seq.id,), slabs=slabs), "arrived while its batch runs")
            self._enlist(turn, seq, grow)

    def _enlist(self, turn: Issued, seq: Sequence, grow: int) -> None:
        turn.members[seq.id] = seq
        seq.turns.append(turn.id)
        seq.project(seq.projected_kv + grow)
        seq.starved = False

    def _turn(self, inst: Instance, proposal: Proposal, fitted: Fitted, after: tuple[CommandId, ...]) -> Issued:
        fp, decode, steps = proposal.model.fp, fitted.decode, fitted.steps
        growth = self._room.growth(inst, proposal, decode, steps) if fitted.growth.away else fitted.growth
        blocks, spare, _ = growth
        slabs = inst.book.slabs_for(fp, blocks, fitted.tight) + spare
        parts = tuple(part for seq in proposal.prefill for part in self._parts(inst, seq, proposal))
        stretch = self._pool.stretch
        report_steps = min(steps, REPORT_STEPS * stretch) if stretch > 1 else 0
        body = Turn(proposal.model.name, parts, tuple(s.id for s in decode), steps, slabs, report_steps=report_steps)
        turn = self._pool.issue(inst, body, proposal.reason, after, model=proposal.model)
        inst.book.grant_kv(turn, fp, blocks, fitted.tight, spare)
        turn.steps, turn.prefills, turn.batch = steps, proposal.prefill, proposal.batch
        for seq in decode:
            self._enlist(turn, seq, max(1, min(steps, seq.max_tokens - seq.output_tokens)))
        for seq in proposal.prefill:
            self._enlist(turn, seq, seq.cached_on(inst) + proposal.part_of(seq, inst))
        turn.alone = not self._pool.suspects.keys().isdisjoint(turn.members)
        self._on_lane(inst, turn, inst.weights[proposal.model.name])
        return turn

    def warm_up(self, inst: Instance) -> None:
        """Run first steps of a resident model ahead on an instance without sequences: graphs are captured, kernels
        compiled. Each turn runs one kind of step, of the most recently used model. Sequences held from an earlier
        attachment continue as soon as a gateway claims them."""
        if inst.sequences or inst.held or inst.turns or inst.wanted or inst.draining:
            return
        cold = (weights for name, weights in inst.weights.items() if name in inst.cold)
        ready = [
            each
            for each in cold
            if each.ready and each.unload is None and not (each.model.queued or each.model.died_warming_up)
        ]
        if not ready or self._awaits(inst):
            return
        weights = max(ready, key=lambda each: each.used)
        fp, name = weights.model.fp, weights.model.name
        slabs = inst.book.slabs_for(fp, 1)
        if slabs > inst.book.free():
            return
        body = Turn(name, (), (), 0, slabs, warm_up=True)
        turn = self._pool.issue(inst, body, f"nothing runs here: first steps of {name} ahead", model=weights.model)
        inst.book.grant_kv(turn, fp, 1)
        turn.warm_up = True
        self._on_lane(inst, turn, weights)

    def _awaits(self, inst: Instance) -> bool:
        """True when a sequence that is placed nowhere may be placed here."""
        parked = self._pool.parked
        return any((s.home is None or s.id in parked) and inst.takes(s) for s in self._pool.sequences.values())

    def _parts(self, inst: Instance, seq: Sequence, proposal: Proposal) -> list[PrefillPart]:
        """Parts of what is expected to be left behind the cached part of a prompt: where that is gone, no turn takes
        longer for it."""
        left = proposal.part_of(seq, inst)
        if seq.model.pools:
            return [PrefillPart(seq.id, left)]  # the engine fills its passes with the prompts of a turn
        chunk = self._pool.config.prefill_chunk_tokens
        if seq.cached_on(inst):
            left = -(-left // chunk) * chunk
        return [PrefillPart(seq.id, min(chunk, left - at)) for at in range(0, left, chunk)]

    def _on_lane(self, inst: Instance, turn: Issued, weights: Weights) -> None:
        turn.weights = weights
        weights.turns += 1
        weights.last_turn = turn.id
        if not inst.turns:
            inst.moved_at = self._pool.now
        inst.turns.append(turn)
