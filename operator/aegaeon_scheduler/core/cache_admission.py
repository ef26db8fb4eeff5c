"""Admission of new sessions by the KV in use: they wait while it fills more than a share of its room on every engine
that may prefill them, or on every one that may decode them. So what decodes can grow, and is not preempted for prompts
that come meanwhile.

The room of an engine is its memory less the weights of models that sequences on it need: idle weights are unloaded on
demand. Prompts that wait on an engine count with the KV that they will have. What waits for no engine yet, and KV that
is parked on the host, does not: where models share engines the policy moves it there, and the gate seldom closes.
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
    """Keeps new sessions in `pool.gated` while `kv_gate` (share of the room, 0: never) is exceeded everywhere."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def holds(self, seq: Sequence) -> bool:
        """Returns true when a sequence has to wait. Answers that a client reads already go on."""
        if not self._pool.config.kv_gate or seq.prefix_tokens or not prompt_bytes(seq):
            return False
        return _closed(_needed(self._pool, seq), Spares(self._pool))

    def passing(self, inst: Instance) -> list[Sequence]:
        """Sequences that waited and fit below the gate of this engine now: those due for a batch last, upper tiers
        first, else in the order of their arrival."""
        spares, passing = Spares(self._pool), list[Sequence]()
        if spares.of(inst) <= 0:
            return passing
        closed: dict[object, bool] = {}
        for seq in sorted(self._pool.gated.values(), key=_turn):
            needed = _needed(self._pool, seq)
            if needed not in closed:
                closed[needed] = _closed(needed, spares)
            if not closed[needed] and any(inst in engines for engines in needed):
                passing.append(seq)
                if spares.take(inst, prompt_bytes(seq)) <= 0:
                    break
        return passing


class Spares:
    """Bytes of KV below the gate on each engine, measured once."""

    def __init__(self, pool: Pool) -> None:
        self._share = pool.config.kv_gate
        self._spare: dict[Instance, float] = {}

    def of(self, inst: Instance) -> float:
        """Returns the bytes; at least 1 on an engine without KV, so that one session may always begin there."""
        if inst not in self._spare:
            used, room = kv_bytes(inst, _block_bytes(inst))
            used += sum(prompt_bytes(seq) for seq in inst.sequences.values() if seq.stage is Stage.QUEUED)
            spare = self._share * room - used
            self._spare[inst] = spare if used else max(spare, 1.0)
        return self._spare[inst]

    def take(self, inst: Instance, nbytes: int) -> float:
        """Returns what is left."""
        self._spare[inst] = self.of(inst) - nbytes
        return self._spare[inst]


def _needed(pool: Pool, seq: Sequence) -> tuple[tuple[Instance, ...], ...]:
    """Engines of which it needs one to prefill, and those of which it needs one to decode."""
    open_to = pool.fleet.of(seq.model).open
    if not any(inst.role is Role.PREFILL for inst in open_to):
        return (open_to,) if open_to else ()
    roles = (Role.DECODE,) if seq.model.pools else (Role.DECODE, Role.PREFILL)
    return tuple(tuple(inst for inst in open_to if inst.role is not role) for role in roles)


def _closed(needed: tuple[tuple[Instance, ...], ...], spares: Spares) -> bool:
    return any(engines and all(spares.of(inst) <= 0 for inst in engines) for engines in needed)


def _block_bytes(inst: Instance) -> dict[KvShape, int]:
    """Bytes of a block of each shape that the sequences and weights on an engine have."""
    models = {seq.model for seq in inst.sequences.values()}.union(w.model for w in inst.weights.values())
    return {model.fp.kv_shape: model.fp.kv_block_bytes for model in models if model.footprint is not None}


def _turn(seq: Sequence) -> tuple[bool, int, int]:
    return seq.promised_from > seq.arrival, seq.terms.tier.level, seq.order
