"""States of a pool whose devices fail; see operator_states."""

from __future__ import annotations

from collections.abc import Iterator

from operator_objects import Json
from operator_state import State, pod

from aegaeon_operator.reconcile.cluster.facts import SuspectFacts

ENGINES = ("pool-engine-0", "pool-engine-1")
ERROR = "cuMemcpyAsync: an illegal memory access was encountered (CUDA error 700)"
SUSPECTS = tuple(
    SuspectFacts(name, "node-1", f"5f1c3a52-9d0e-4b7a-8a35-0c2f9e6b1d4{number}", ERROR)
    for number, name in enumerate(ENGINES)
)


def of_devices(objects: tuple[Json, ...]) -> Iterator[State]:
    """GPUs that were lost again and again."""
    for title, count in (("An engine leaves its GPU alone", 1), ("All engines leave their GPUs alone", 2)):
        names = ENGINES[-count:]
        yield State(title, objects, {name: unready(name) for name in names}, detached=names, suspects=SUSPECTS[-count:])


def unready(name: str) -> Json:
    """A pod whose container runs, and is not ready."""
    container = {"name": "engine", "ready": False, "started": True, "state": {"running": {}}}
    conditions = [{"type": "Ready", "status": "False"}]
    return pod(name, "engine", conditions=conditions, containerStatuses=[container])
