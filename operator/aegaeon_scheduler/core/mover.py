"""Carries out the moves of a pool pass: sequences to host memory or to another instance, weights ahead of turns.

Moves that do not fit yet wait in `Instance.wanted` and `Instance.incoming` and are tried again at every report.
"""

from __future__ import annotations

from aegaeon_scheduler.core.book import blocks_for
from aegaeon_scheduler.core.copies import Copies
from aegaeon_scheduler.core.domain import Place, Stage
from aegaeon_scheduler.core.handoff import HandOff
from aegaeon_scheduler.core.life import Life
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.residency import Residency
from aegaeon_scheduler.core.room import Room
from aegaeon_scheduler.core.shared_weights import slabs_to_load
from aegaeon_scheduler.core.state import Instance, Model, Sequence

# Slabs, as a share of all, that copies ahead of turns leave free for the growth of what runs.
_RESERVE = 1 / 64


class Mover:
    """Between the policy, which says where sequences belong, and residency, which sends the commands."""

    def __init__(
        self, pool: Pool, copies: Copies, residency: Residency, room: Room, life: Life, handoff: HandOff
    ) -> None:
        self._pool = pool
        self._copies = copies
        self._residency = residency
        self._room = room
        self._life = life
        self._handoff = handoff

    def carry_out(self, move: Move) -> None:
        """Start the move; what cannot be sent at once follows with the reports."""
        for seq in move.sequences:
            if move.instance is None:
                self._out(seq, move.reason)
            else:
                self._to(seq, move.instance, move.reason)
        inst = move.instance
        if inst is not None:
            inst.wanted.setdefault(move.model.name, move.reason)
            self._life.wake(inst)

    def _out(self, seq: Sequence, reason: str) -> None:
        inst = seq.home
        if inst is None:
            return
        inst.wanted.pop(seq.model.name, None)  # who stays asks for the weights again
        if seq.copy is not None:
            return
        if seq.stage is Stage.QUEUED:
            inst.sequences.pop(seq.id, None)
            seq.home = None
            seq.model.waiting[seq.id] = seq
        elif seq.source is not None:
            self._handoff.take_back(seq, reason)
        elif seq.place is Place.DEVICE or seq.turns:
            self._copies.swap_out(inst, seq, reason, tuple(seq.turns))
        elif inst.draining:
            self._life.lose(seq, reason, blame=0)  # its KV had left the device before

    def _to(self, seq: Sequence, inst: Instance, reason: str) -> None:
        if seq.home is None:
            seq.model.waiting.pop(seq.id, None)
            seq.home = inst
            inst.sequences[seq.id] = seq
        elif seq.home is inst:
            if seq.place is Place.HOST:
                self._handoff.unpark(seq)
                inst.incoming.append(seq)
        elif seq.place is Place.HOST and seq.handle_of is not None:
            self._handoff.hand_over(seq, inst, reason)
            inst.incoming.append(seq)
        else:
            self._life.lose(seq, f"its KV cannot leave {seq.home.id}", blame=0)

    # -- ahead of turns ---------------------------------------------------------------------------------------------

    def send_waiting_moves(self, inst: Instance) -> None:
        """Send the loads, then the copies in, that there is room for now."""
        for name in list(inst.wanted):
            model = self._pool.models.get(name)
            if model is None or not inst.has(model) or self._load(inst, model, inst.wanted[name]):
                del inst.wanted[name]
        while inst.incoming and not inst.wanted:
            if not self._bring_in(inst, inst.incoming[0]):
                return
            inst.incoming.popleft()

    def _load(self, inst: Instance, model: Model, reason: str) -> bool:
        weights = inst.weights.get(model.name)
        if weights is not None:
            return weights.unload is None
        unloads = self._room.drop_idle(inst, model, slabs_to_load(inst, model))
        if unloads is None:
            return False
        self._residency.ready_weights(inst, model, reason, unloads)
        return True

    def _bring_in(self, inst: Instance, seq: Sequence) -> bool:
        """Bring a sequence in; True when it needs no further waiting."""
        if seq.home is not inst or seq.copy is not None or self._pool.sequences.get(seq.id) is not seq:
            return True
        if seq.place is not Place.HOST and seq.source is None:
            return True
        fp = seq.model.fp
        slabs = inst.book.slabs_for(fp, blocks_for(fp, seq.kv_tokens))
        reserve = int(inst.slabs * _RESERVE)
        if slabs + reserve > inst.book.free():
            unloads = self._room.drop_idle(inst, seq.model, slabs + reserve)
            if unloads or (slabs > inst.book.free()):
                return False
        self._copies.bring_in(inst, seq, "its group runs here")
        return True
