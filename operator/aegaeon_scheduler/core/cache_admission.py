"""Admission of new sessions by the KV in use: they wait while it fills more than a share of its room on every engine
that may prefill them, or on every one that may decode them. So what decodes can grow, and is not preempted for prompts
that come meanwhile.

The room of an engine is its memory less the weights of models that sequences on it need: idle weights are unloaded on
demand. Prompts that wait on an engine count with the KV that they will have.
"""

from __future__ import annotations

from collections.abc import Mapping

from aegaeon_scheduler.core.book import blocks_for
from aegaeon_scheduler.core.domain import KvShape, Role, Stage
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Sequence


def kv_bytes(inst: Instance, block_bytes: Mapping[KvShape, int]) -> tuple[int, int]:
    """Bytes of KV on an engine, and the room for it; `block_bytes` of each KV shape."""
    needed = {seq.model.name for seq in inst.sequences.values()}
    weights = sum(w.slabs for name, w in inst.weights.items() if name in needed)
    used = sum(m.used_blocks * block_bytes.get(shape, 0) for shape, m in inst.book.memory.shapes.items())
    return used, (inst.slabs - weights) * inst.slab_bytes


def prompt_bytes(seq: Sequence) -> int:
    """KV of a sequence once its prompt is computed; 0 while the sizes of its model are not known."""
    fp = seq.model.footprint
    return 0 if fp is None else blocks_for(fp, seq.prompt_tokens + seq.prefix_tokens) * fp.kv_block_bytes


class KvGate:
    """Keeps new sequences in `pool.gated` while `kv_gate` (share of the room, 0: never) is exceeded everywhere."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def holds(self, seq: Sequence) -> bool:
        """Returns true when a sequence has to wait. Answers that a client reads already go on."""
        if not self._pool.config.kv_gate or seq.prefix_tokens or not prompt_bytes(seq):
            return False
        return any(engines and all(self._spare(inst) <= 0 for inst in engines) for engines in self._needed(seq))

    def passing(self, inst: Instance) -> list[Sequence]:
        """Sequences that waited and fit below the gate of this engine now, in the order of their arrival."""
        spare, passing = self._spare(inst), []
        for seq in self._pool.gated.values():
            if spare <= 0:
                break
            if inst in self._pool.fleet.of(seq.model).open and not self.holds(seq):
                passing.append(seq)
                spare -= prompt_bytes(seq)
        return passing

    def _needed(self, seq: Sequence) -> list[list[Instance]]:
        """Engines of which it needs one to prefill, and those of which it needs one to decode."""
        open_to = self._pool.fleet.of(seq.model).open
        apart = any(inst.role is Role.PREFILL for inst in open_to)
        roles = (Role.DECODE, Role.PREFILL) if apart else (Role.DECODE,)
        return [[inst for inst in open_to if inst.role is not role] for role in roles]

    def _spare(self, inst: Instance) -> float:
        """Bytes below the gate; at least 1 on an engine without KV, so that one session may always begin there."""
        used, room = kv_bytes(inst, self._pool.block_bytes())
        used += sum(prompt_bytes(seq) for seq in inst.sequences.values() if seq.stage is Stage.QUEUED)
        spare = self._pool.config.kv_gate * room - used
        return spare if used else max(spare, 1.0)
