"""Up: how far a model is on an engine becomes an event of the core; other reports are events as they are.

The core's view of a model is not the engine's: absence is a phase of its own there, what is for people is left out,
and of adapters only those that failed count.
"""

from __future__ import annotations

from aegaeon_proto.codec.catalog import footprint_from
from aegaeon_proto.codec.nouns import PHASE_OF, named
from aegaeon_proto.v1 import model_pb2
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.domain import InstanceId, ModelName, Phase


def model_reported(instance: InstanceId, state: model_pb2.ModelState) -> events.ModelReported:
    """How far a model is on an instance. Raises ProtocolError without a phase."""
    phase = named(PHASE_OF, state.phase, f"ModelState of {state.model} from {instance}: phase")
    return events.ModelReported(
        instance=instance,
        model=ModelName(state.model),
        phase=Phase.ABSENT if state.absent else Phase(phase.value),
        footprint=footprint_from(state.footprint) if state.HasField("footprint") else None,
        reason=state.reason,
        without=tuple(
            (adapter.identity, adapter.reason)
            for adapter in state.adapters
            if adapter.phase == model_pb2.MODEL_PHASE_FAILED
        ),
        cold=state.cold,
        remaining_s=state.remaining_s,
    )
