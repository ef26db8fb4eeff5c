"""After prefill: a sequence decodes on its instance, or is handed off to another one.

A hand-off is a copy to the source's host tier, a place to decode, and a copy from that tier. The source owns the KV
until the destination has it.
"""

from __future__ import annotations

from aegaeon_scheduler.core.book import blocks_for
from aegaeon_scheduler.core.commands import Close
from aegaeon_scheduler.core.copies import Copies
from aegaeon_scheduler.core.domain import Place, Role, Stage
from aegaeon_scheduler.core.life import Life
from aegaeon_scheduler.core.policies import Policy
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.residency import Residency
from aegaeon_scheduler.core.state import Instance, Model, Sequence


class HandOff:
    """Moves sequences from prefill to decode, and between instances."""

    def __init__(self, pool: Pool, policy: Policy, copies: Copies, life: Life, residency: Residency) -> None:
        self._pool = pool
        self._policy = policy
        self._copies = copies
        self._life = life
        self._residency = residency

    def prefilled(self, seq: Sequence) -> None:
        """Its prompt is in and its first token is out: hand it off, or decode here."""
        inst = seq.home
        assert inst is not None
        seq.prefilled = True
        self._policy.forget(seq)
        if inst.role is Role.PREFILL:
            self._life.stage(seq, Stage.HANDOFF)
            self._life.hold(seq)
            if seq.copy is None:  # else it was preempted while its last part ran: that copy follows the part
                self.swap_out(inst, seq)
            return
        self._life.stage(seq, Stage.DECODE)
        self._policy.place(seq, self._pool.now)
        if seq.copy is None:
            self._residency.join(inst, seq)
        self._life.wake(inst)

    def parked(self, seq: Sequence) -> None:
        """Its KV is on the source's host tier: find it a decode instance, or wait for one."""
        source = seq.home
        assert source is not None
        inst = self._policy.place(seq, self._pool.now)
        if inst is None:
            self._pool.parked[seq.id] = seq
            return
        self.hand_over(seq, inst, f"hand-off from {source.id}")
        blocks = blocks_for(seq.model.fp, seq.kv_tokens)
        if not inst.stuck and inst.book.slabs_for(seq.model.fp, blocks) <= inst.book.free():
            self._copies.bring_in(inst, seq, f"hand-off from {source.id}")
        self._life.wake(inst)

    def hand_over(self, seq: Sequence, inst: Instance, reason: str) -> None:
        """Its KV is on the host tier of its home: make this instance its home, which is to adopt it."""
        source = seq.home
        assert source is not None
        self._life.stage(seq, Stage.HANDOFF)
        self._pool.parked.pop(seq.id, None)
        seq.source, seq.home = source, inst
        source.sequences.pop(seq.id, None)
        inst.sequences[seq.id] = seq
        seq.place, seq.opened = Place.NONE, False
        if seq.open_id is not None:
            source.opens.pop(seq.open_id, None)
            seq.open_id = None
        self._residency.open(inst, seq, reason)

    def take_back(self, seq: Sequence, reason: str) -> None:
        """A hand-over that was not begun is off: the source's host tier holds it as before."""
        inst, source = seq.home, seq.source
        assert inst is not None
        assert source is not None
        inst.sequences.pop(seq.id, None)
        if seq.open_id is not None:
            inst.opens.pop(seq.open_id, None)
        self._life.close(inst, seq, reason)
        seq.home, seq.source = source, None
        source.sequences[seq.id] = seq
        seq.opened, seq.open_id, seq.place = True, None, Place.HOST
        self._pool.parked[seq.id] = seq

    def unpark(self, seq: Sequence) -> None:
        """Cancel a hand-over: the sequence continues where its KV is."""
        self._pool.parked.pop(seq.id, None)
        self._life.stage(seq, Stage.DECODE if seq.prefilled else Stage.PREFILL)

    def adopted(self, seq: Sequence) -> None:
        """The KV is here; the source may forget it."""
        source, inst = seq.source, seq.home
        assert inst is not None
        if source is not None:
            self._pool.send(source, Close(seq.id, seq.epoch), f"{inst.id} has it")
        seq.source = seq.handle_of = None
        seq.place = Place.DEVICE
        seq.held_until = 0.0
        if seq.prefilled:
            self._pool.prefixes.computed(seq, inst)
            self._life.stage(seq, Stage.DECODE)
            self._residency.join(inst, seq)
        else:
            self._life.stage(seq, Stage.PREFILL)
            self._life.hold(seq)
        self._life.wake(inst)

    def place_waiting(self, model: Model) -> None:
        """An instance has come up or got this model: what waited for it."""
        waiting = list(model.waiting.values())
        model.waiting.clear()
        for seq in waiting:
            refused = self._life.unfit(seq)
            if refused is not None:
                self._life.reject(seq, *refused)
            else:
                self._life.queue(seq)
        for seq in [s for s in self._pool.parked.values() if s.model is model]:
            self.parked(seq)

    def swap_out(self, inst: Instance, seq: Sequence) -> None:
        """Start it as soon as the host tier has room; until then the sequence waits in inst.outs."""
        if inst.book.host_room(seq.model.fp, blocks_for(seq.model.fp, seq.kv_tokens)):
            self._copies.swap_out(inst, seq, "prefilled: hand-off to a decode instance", tuple(seq.turns))
        else:
            inst.outs.append(seq)

    def retry_outs(self, inst: Instance) -> None:
        """Host memory changed: hand-offs that waited for it."""
        for _ in range(len(inst.outs)):
            seq = inst.outs.popleft()
            if seq.home is inst and seq.stage is Stage.HANDOFF and seq.copy is None and seq.place is Place.DEVICE:
                self.swap_out(inst, seq)
