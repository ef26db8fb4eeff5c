"""States that engines report of one model: the furthest, and the reasons for people."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from aegaeon_proto.v1 import model_pb2

# A model that is cached anywhere can be served, one being fetched may be soon; failed is what failed everywhere.
_RANK = {
    model_pb2.MODEL_PHASE_CACHED: 3,
    model_pb2.MODEL_PHASE_FETCHING: 2,
    model_pb2.MODEL_PHASE_FAILED: 1,
}

State = TypeVar("State", model_pb2.ModelState, model_pb2.AdapterState)


def reason_of(best: State, states: Collection[State]) -> str:
    """The reason for people: for a served model or adapter, also of the engines that cannot serve it."""
    failed = [state for state in states if state.phase == model_pb2.MODEL_PHASE_FAILED]
    if not failed or best.phase == model_pb2.MODEL_PHASE_FAILED:
        return best.reason
    some = f"{len(failed)} of {len(states)} engines cannot serve it: {failed[0].reason}"
    return f"{best.reason}; {some}" if best.reason else some


def is_unsupported(best: State, states: Collection[State]) -> bool:
    """True when it failed on every engine, and no engine may succeed at another try."""
    return best.phase == model_pb2.MODEL_PHASE_FAILED and all(state.unsupported for state in states)


def rank(state: model_pb2.ModelState | model_pb2.AdapterState) -> int:
    """Return how far a model or an adapter is."""
    return _RANK.get(state.phase, 0)


def furthest(states: Collection[model_pb2.ModelState]) -> model_pb2.ModelState:
    """Return the state of the engine that is nearest to serving the model; an empty one without states."""
    return max(states, key=_merit, default=model_pb2.ModelState())


def _merit(state: model_pb2.ModelState) -> tuple[int, bool, float]:
    done = state.bytes_done / state.bytes_total if state.bytes_total else 0.0
    return rank(state), not state.absent, done
