"""Whether KV or weights that a turn lacks are on their way: an issued copy or load that does not wait for this turn."""

from __future__ import annotations

from aegaeon_sidecar.domain.commands import Adopt, Load, SwapIn
from aegaeon_sidecar.domain.program import Lane
from aegaeon_sidecar.domain.sequences import SeqKey
from aegaeon_sidecar.engine.state import Queued, State


def model_is_coming(state: State, turn: Queued, model: str) -> bool:
    """A Load of this model is queued or running and can end before the turn does (lock held)."""
    return any(
        isinstance(item.body, Load) and item.body.model == model and not state.program.waits_for(item.id, turn.id)
        for item in state.program.of(Lane.WEIGHTS)
    )


def is_coming(state: State, turn: Queued, key: SeqKey) -> bool:
    """What this sequence lacks for a step is on its way: KV, or its compiled grammar (lock held)."""
    sequence = state.kv.sequences.get(key)
    return kv_is_coming(state, turn, key) or (sequence is not None and not sequence.ready)


def kv_is_coming(state: State, turn: Queued, key: SeqKey) -> bool:
    """A SwapIn or Adopt of this sequence is queued or running and can end before the turn does (lock held)."""
    return any(
        isinstance(item.body, SwapIn | Adopt) and item.body.seq == key and not state.program.waits_for(item.id, turn.id)
        for item in state.program.of(Lane.KV_IN)
    )
