"""Frees memory on one instance, or shrinks the proposal to what can ever fit. Preemption order:

idle models, fewer steps, sequences outside every turn, then the sequences of the running turn when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from aegaeon_scheduler.core.book import blocks_for
from aegaeon_scheduler.core.commands import Unload
from aegaeon_scheduler.core.copies import Copies
from aegaeon_scheduler.core.domain import CommandId
from aegaeon_scheduler.core.life import Life
from aegaeon_scheduler.core.phases import PLACE_DEVICE
from aegaeon_scheduler.core.policies import Policy, Proposal
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.shared_weights import ends_with, given_by, shared_weights_for, slabs_to_load
from aegaeon_scheduler.core.state import Instance, Model, Sequence, Weights

_FEW_STEPS = 8  # a turn is cut down to so many steps before any sequence is swapped out for it


class Growth(NamedTuple):
    """Memory of a turn beside weights: `blocks` by which its sequences grow, a slab more where one of them was starved
    last time (`spare`: its engine's borders fell differently), and copies of those whose KV is `away`."""

    blocks: int
    spare: int
    away: list[Sequence]


@dataclass(slots=True)
class Fitted:
    """A proposal that fits: its sequences, steps, the unloads its load waits for, and what its growth waits for."""

    decode: list[Sequence]
    steps: int
    growth: Growth
    unloads: dict[CommandId, int] = field(default_factory=dict)
    waits: tuple[CommandId, ...] = ()
    tight: bool = False  # counts on free blocks of mapped slabs


class Room:
    """Finds memory for proposals: unloads, swaps out, and where the host tier is full as well gives a sequence up."""

    def __init__(self, pool: Pool, policy: Policy, copies: Copies, life: Life) -> None:
        self._pool = pool
        self._policy = policy
        self._copies = copies
        self._life = life

    def growth(self, inst: Instance, proposal: Proposal, decode: list[Sequence], steps: int) -> Growth:
        """The growth of the turn's sequences. A prompt begins only where all of it fits: its cached part comes with the
        first part."""
        fp = proposal.model.fp
        per, blocks, spare = fp.kv_block_tokens, 0, 0
        away = []
        for seq in proposal.prefill:
            grow = proposal.part_of(seq, inst) if seq.projected_kv else seq.unissued_tokens
            blocks += blocks_for(fp, seq.projected_kv + grow) - blocks_for(fp, seq.projected_kv)
            spare |= seq.starved
            if seq.away:
                away.append(seq)
        for seq in decode:
            at, left = seq.projected_kv, seq.max_tokens - seq.output_tokens
            if seq.place is not PLACE_DEVICE and seq.copy is None:
                at = seq.kv_tokens
            grow = steps if steps < left else max(1, left)
            blocks += -(-(at + grow) // per) - -(-at // per)
            spare |= seq.starved
            if seq.away:
                away.append(seq)
        return Growth(blocks, int(spare), away)

    def _need(self, inst: Instance, proposal: Proposal, growth: Growth, tight: bool = True) -> int:
        """Slabs that the proposal takes from the book: weights, copies in, growth."""
        fp, book, blocks = proposal.model.fp, inst.book, growth.blocks
        load = slabs_to_load(inst, proposal.model) + growth.spare
        arriving = [blocks_for(fp, seq.kv_tokens) for seq in growth.away]
        if not tight:
            return load + sum(book.slabs_for(fp, need) for need in arriving) + book.slabs_for(fp, blocks)
        # every grant is rounded up on its own
        return load + book.slabs_for(fp, blocks + sum(arriving), tight) + len(arriving) * 2

    def fit(self, inst: Instance, proposal: Proposal) -> Fitted | None:
        """The proposal as it fits now, or None while room is being made."""
        decode = [s for s in proposal.decode if not s.copying_out][: inst.max_batch]
        if (not decode and not proposal.prefill) or any(_waits_for_an_end(inst, s) for s in proposal.prefill):
            return None
        free = inst.book.free()
        growth = self.growth(inst, proposal, decode, proposal.steps)
        if self._need(inst, proposal, growth, tight=False) <= free:
            return Fitted(decode, proposal.steps, growth)
        if self._need(inst, proposal, growth) <= free:
            return Fitted(decode, proposal.steps, growth, tight=True)
        if inst.count:
            return None  # room is on its way; what was asked for is enough for the head of the line
        return self._squeeze(inst, proposal, decode)

    def _squeeze(self, inst: Instance, proposal: Proposal, decode: list[Sequence]) -> Fitted | None:
        def need(steps: int, tight: bool = True) -> int:
            return self._need(inst, proposal, self.growth(inst, proposal, decode, steps), tight)

        candidates = _Candidates(self._pool, self._policy, inst, proposal, decode)
        best = inst.book.free() + candidates.total()
        steps = proposal.steps
        idle = inst.book.free() + given_by(candidates.idle)
        while steps > _FEW_STEPS and need(steps) > idle:
            steps = max(_FEW_STEPS, steps // 4)
        while decode and need(steps) > best:
            if steps > 1:
                steps = max(1, steps // 4)
                continue
            candidates.add(decode.pop())
            best = inst.book.free() + candidates.total()
        if not decode and not proposal.prefill:
            return None
        tight = need(steps, tight=False) > best
        needed = need(steps, tight)
        if needed > best:
            return None
        fitted = Fitted(decode, steps, self.growth(inst, proposal, decode, steps), tight=tight)
        return self._take(inst, proposal, candidates, fitted, needed)

    def _take(
        self, inst: Instance, proposal: Proposal, candidates: _Candidates, fitted: Fitted, need: int
    ) -> Fitted | None:
        free = inst.book.free()
        free = self._unload(inst, proposal.model, candidates.idle, fitted.unloads, need, free)
        if free >= need:
            return self._after_unloads(fitted)
        swaps: list[Sequence] = []
        gain = 0.0
        for seq in self._policy.preemption_order(inst, candidates.sequences, self._pool.now):
            if free + gain >= need:
                break
            swaps.append(seq)
            gain += candidates.slabs(seq)
        if free + gain < need:
            going = [*candidates.busy, *candidates.idle]
            free = self._unload(inst, proposal.model, going, fitted.unloads, need - gain, free)
            if not swaps and free >= need:
                return self._after_unloads(fitted)
        self._swap(inst, proposal, swaps)
        if free + gain < need:
            self._swap(inst, proposal, self._policy.preemption_order(inst, candidates.running, self._pool.now))
        return None

    def drop_idle(self, inst: Instance, model: Model, need: int) -> dict[CommandId, int] | None:
        """Unload idle models until so many slabs are or will be free; None (nothing sent) if they do not reach."""
        free = inst.book.free()
        if free >= need:
            return {}
        if any(w.unload is not None for w in inst.weights.values()):
            return None
        own = shared_weights_for(inst, model)
        idle = [w for w in inst.weights.values() if w.model is not model and w.ready and w.shared is not own]
        order = self._policy.unload_order(inst, idle)
        if free + given_by(order) < need:
            return None
        unloads: dict[CommandId, int] = {}
        self._unload(inst, model, order, unloads, need, free)
        return unloads

    def _unload(
        self, inst: Instance, model: Model, models: list[Weights], unloads: dict[CommandId, int], need: float, free: int
    ) -> int:
        for weights in models:
            if free >= need:
                break
            if weights.unload is not None or not ends_with(weights.shared, models):
                continue
            after = (weights.last_turn,) if weights.turns and weights.last_turn is not None else ()
            name = weights.model.name
            issued = self._pool.issue(inst, Unload(name), f"room for {model.name}", after, model=weights.model)
            issued.weights, weights.unload = weights, issued.id
            weights.gives = given_by((weights,))
            inst.count += 1
            unloads[issued.id] = weights.gives
            free += weights.gives
        return free

    def _after_unloads(self, fitted: Fitted) -> Fitted:
        fitted.waits = tuple(fitted.unloads)
        return fitted

    def _swap(self, inst: Instance, proposal: Proposal, sequences: Iterable[Sequence]) -> None:
        for seq in sequences:
            if _fits_host(inst, seq):
                slack = seq.deadline() - self._pool.now
                self._copies.swap_out(
                    inst, seq, f"preempted by {proposal.model.name}, slack {slack:.3g} s", tuple(seq.turns)
                )
            elif _may_cost(proposal, seq) and not inst.turns and not inst.memory_due:
                seq.preempted_at = (inst, inst.ended)
                self._life.lose(seq, "no room on the device nor on the host tier of its instance", blame=0)
                inst.memory_due = True


def _fits_host(inst: Instance, seq: Sequence) -> bool:
    """True when it can be swapped out to the host tier of its instance."""
    fp = seq.model.fp
    return inst.book.host_room(fp, blocks_for(fp, max(seq.kv_tokens, seq.projected_kv)))


def _waits_for_an_end(inst: Instance, seq: Sequence) -> bool:
    """True when the only room for it here is the memory that its own preemption freed."""
    return seq.preempted_at == (inst, inst.ended) and any(s.place is PLACE_DEVICE for s in inst.sequences.values())


def _may_cost(proposal: Proposal, seq: Sequence) -> bool:
    """True when a proposal may cost a sequence its KV, because the host tier is full.

    No prompt may: it can wait. A batch may cost its own members, and sequences younger than its eldest. So the oldest
    always makes progress, and none is computed again only to be given up for the one that it was given up for before.
    """
    if not proposal.decode:
        return False
    return seq.batch is proposal.batch or seq.order > min(s.order for s in proposal.decode)


class _Candidates:
    """The sequences that a proposal may preempt on an instance, and the weights that it may unload."""

    def __init__(self, pool: Pool, policy: Policy, inst: Instance, proposal: Proposal, decode: list[Sequence]) -> None:
        self._inst = inst
        keep = {s.id for s in decode} | {s.id for s in proposal.prefill}
        self.sequences: list[Sequence] = []
        self.running: list[Sequence] = []
        for seq in inst.sequences.values():
            if seq.id in keep or seq.place is not PLACE_DEVICE or seq.copy is not None:
                continue
            if _fits_host(inst, seq) or _may_cost(proposal, seq):
                (self.running if seq.turns else self.sequences).append(seq)
        unloadable = [
            w for w in inst.weights.values() if w.model is not proposal.model and w.ready and w.unload is None
        ]
        own = shared_weights_for(inst, proposal.model)
        free = [w for w in unloadable if w.shared is not own]
        self.idle = policy.unload_order(inst, [w for w in free if not w.turns])
        self.busy = [w for w in free if w.turns]

    def slabs(self, seq: Sequence) -> float:
        """Slabs that swapping it out brings, about: neighbours may hold on to the borders."""
        fp = seq.model.fp
        return blocks_for(fp, seq.kv_tokens) * fp.kv_block_bytes / self._inst.slab_bytes

    def total(self) -> int:
        """Slabs if all of them were preempted."""
        kv = sum(self.slabs(seq) for seq in (*self.sequences, *self.running))
        return int(kv) + given_by((*self.idle, *self.busy))

    def add(self, seq: Sequence) -> None:
        """A younger member of the proposal's own batch may be preempted as well."""
        if seq.place is PLACE_DEVICE and seq.copy is None:
            (self.running if seq.turns else self.sequences).append(seq)
