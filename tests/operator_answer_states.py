"""States of a pool in which everything is there and requests get no answer; see operator_states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from operator_objects import Json
from operator_state import SERVED, State

UNANSWERED = replace(SERVED, unanswered=True)


def of_answers(objects: tuple[Json, ...], two_models: tuple[Json, ...]) -> Iterator[State]:
    """From the scheduler's way to gateways to single steps of engines."""
    yield State("No gateway is attached to the scheduler", objects, says={"gateways": frozenset()})
    stuck = ("pool-engine-0", "pool-engine-1")
    yield State(
        "Engines are stuck in a step", objects, models={"llama": UNANSWERED}, says={"stuck": stuck, "stopped": True}
    )
    yield State("No engine gets a turn", objects, models={"llama": UNANSWERED}, says={"stopped": True})
    models = {"llama": UNANSWERED, "qwen": SERVED}
    yield State("One of two engines is stuck in a step", two_models, models=models, says={"stuck": stuck[:1]})
