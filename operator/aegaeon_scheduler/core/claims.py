"""Claims of gateways on sequences that attaching instances still hold.

The gateway's prefix is the truth; a sequence that no gateway claims is closed after a lease.
"""

from __future__ import annotations

from aegaeon_scheduler.core.commands import Close
from aegaeon_scheduler.core.domain import Held, InstanceId, Place, Role, Stage
from aegaeon_scheduler.core.events import Submitted
from aegaeon_scheduler.core.handoff import HandOff
from aegaeon_scheduler.core.life import Life
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.residency import Residency
from aegaeon_scheduler.core.state import Instance, Sequence


class Claims:
    """Continue the sequences that instances hold, or close them."""

    def __init__(self, pool: Pool, life: Life, residency: Residency, handoff: HandOff) -> None:
        self._pool = pool
        self._life = life
        self._residency = residency
        self._handoff = handoff

    def claim_held(self, event: Submitted) -> None:
        seq = self._pool.sequences.get(event.seq)
        holders = self._pool.held.get(event.seq)
        if seq is None or not holders or seq.stage is not Stage.QUEUED:
            return
        best = max(holders.items(), key=lambda item: item[1].output_tokens)
        inst = self._pool.instances.get(best[0])
        if inst is not None:
            self.claim(inst, best[1], seq)

    def claim(self, inst: Instance, held: Held, seq: Sequence) -> None:
        """Go on with what an instance holds, if that is enough; close every other copy."""
        if not self._usable(inst, held, seq):
            return
        self._unhold(inst, held)
        self._life.withdraw(seq, f"{inst.id} still holds it")
        seq.home = inst
        inst.sequences[seq.id] = seq
        self._residency.open(inst, seq, f"go on from {held.output_tokens} tokens that {inst.id} holds")
        seq.output_tokens, seq.place = held.output_tokens, held.place
        seq.kv_tokens = seq.projected_kv = held.kv_tokens
        seq.model.waiting.pop(seq.id, None)
        self._handoff.prefilled(seq)
        for other in list(self._pool.held.get(seq.id, {}).items()):
            self.expire(other[0], other[1], "another instance holds more of it")

    def _usable(self, inst: Instance, held: Held, seq: Sequence) -> bool:
        if held.model != seq.model.name or not inst.takes(seq) or held.prompt_tokens != seq.prompt_tokens:
            return False
        if held.place is Place.NONE or (held.place is Place.HOST and inst.role is Role.PREFILL):
            return False
        complete = held.output_tokens > 0 and held.kv_tokens >= held.prompt_tokens + held.output_tokens - 1
        return complete and held.output_tokens >= seq.prefix_tokens and held.epoch < seq.epoch

    def _unhold(self, inst: Instance, held: Held) -> None:
        inst.held.pop(held.seq, None)
        self._pool.unhold(inst.id, held.seq)

    def expire(self, instance: InstanceId, held: Held, reason: str = "no gateway claimed it") -> None:
        """Close a sequence that an instance holds and no gateway claims."""
        inst = self._pool.instances.get(instance)
        if inst is None or inst.held.get(held.seq) is not held:
            return
        self._unhold(inst, held)
        seq = self._pool.sequences.get(held.seq)
        if seq is None or seq.home is not inst or not seq.opened:
            self._pool.send(inst, Close(held.seq, held.epoch), reason)
            inst.memory_due = True
