"""The state of every model of a ModelPool: where its files are, what is open for it, why it is not served."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.facts import Json, ModelFacts
from aegaeon_operator.reconcile.cluster.served import Served


def model_states(served: Served) -> list[Json]:
    """As the status has them, by name."""
    pool = served.pool.value
    found: list[Json] = []
    for model in pool.spec.models if pool else ():
        for name in model.names:
            why = served.unserved.get(name)
            state = _state(name, served.facts[name], served.traffic.get(name)) if why is None else _refused(name, why)
            found.append(state if name == model.name else state | {"parent": model.name})
    return sorted(found, key=lambda one: str(one["name"]))


def _refused(name: str, why: str) -> Json:
    return {"name": name, "state": "Failed", "reason": why[:1024], "queued": 0, "running": 0}


def _state(name: str, facts: ModelFacts, on_time: int | None) -> Json:
    state = "Failed" if facts.phase == "failed" else "Cached" if facts.phase == "cached" else "Cold"
    found: Json = {
        "name": name,
        "state": "Resident" if facts.resident and not facts.apart else state,
        "reason": facts.reason[:1024],
        "queued": facts.queued,
        "running": facts.running,
    }
    if on_time is not None:
        found["attainment"] = on_time
    return found


def able(states: list[Json]) -> str:
    """How many models can be served at once, of how many."""
    return f"{sum(one['state'] in ('Cached', 'Resident') for one in states)}/{len(states)}"
