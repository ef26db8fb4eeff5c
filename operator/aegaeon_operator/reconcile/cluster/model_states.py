"""The state of every model of a ModelPool: location of its files, open requests, reason of a failure."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.facts import Json, ModelFacts
from aegaeon_operator.reconcile.cluster.status_inputs import StatusInputs


def model_states(served: StatusInputs) -> list[Json]:
    """Return the models' states for the status, sorted by name."""
    pool = served.pool.value
    states: list[Json] = []
    for model in pool.spec.models if pool else ():
        for name in model.names:
            why = served.unserved.get(name)
            state = _state(name, served.facts[name], served.traffic.get(name)) if why is None else _refused(name, why)
            states.append(state if name == model.name else state | {"parent": model.name})
    return sorted(states, key=lambda state: str(state["name"]))


def _refused(name: str, why: str) -> Json:
    return {"name": name, "state": "Failed", "reason": why[:1024], "queued": 0, "running": 0}


def _state(name: str, facts: ModelFacts, on_time: int | None) -> Json:
    state = "Failed" if facts.phase == "failed" else "Cached" if facts.phase == "cached" else "Cold"
    entry: Json = {
        "name": name,
        "state": "Resident" if facts.resident and not facts.apart else state,
        "reason": facts.reason[:1024],
        "queued": facts.queued,
        "running": facts.running,
    }
    if on_time is not None:
        entry["attainment"] = on_time
    return entry


def able(states: list[Json]) -> str:
    """Return the number of models that can be served without loading files, and the number of all models."""
    return f"{sum(state['state'] in ('Cached', 'Resident') for state in states)}/{len(states)}"
