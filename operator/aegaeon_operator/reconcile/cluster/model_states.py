"""The state of every model of a ModelPool: where its files are, what is open for it, why it is not served."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import Json, Live, ModelFacts, Observed
from aegaeon_operator.reconcile.cluster.windows import ENOUGH_TOKENS
from aegaeon_operator.spec.resources import ModelPool


def model_states(observed: Observed, wanted: Desired, pool: Live[ModelPool]) -> list[Json]:
    """As the status has them, by name."""
    facts = observed.scheduler.models if observed.scheduler else {}
    found: list[Json] = []
    for model in pool.value.spec.models if pool.value else ():
        for name in model.names:
            one = _refused(wanted, pool, name) or _state(name, facts.get(name, ModelFacts()))
            found.append(one if name == model.name else one | {"parent": model.name})
    return sorted(found, key=lambda one: str(one["name"]))


def _refused(wanted: Desired, pool: Live[ModelPool], name: str) -> Json | None:
    why, owner = wanted.attached.failed.get((pool.uid, name), ""), wanted.attached.names.get(name)
    if not why and owner is not None and owner.uid == pool.uid:
        return None
    refusal = wanted.attached.refused.get(pool.uid)
    reason = why or (refusal.message if refusal else "")
    return {"name": name, "state": "Failed", "reason": reason[:1024], "queued": 0, "running": 0}


def _state(name: str, facts: ModelFacts) -> Json:
    state = "Failed" if facts.phase == "failed" else "Cached" if facts.phase == "cached" else "Cold"
    found: Json = {
        "name": name,
        "state": "Resident" if facts.resident else state,
        "reason": facts.reason[:1024],
        "queued": facts.queued,
        "running": facts.running,
    }
    if facts.output_tokens >= ENOUGH_TOKENS:
        found["attainment"] = min(100 * facts.tokens_on_time // facts.output_tokens, 100)
    return found


def able(states: list[Json]) -> str:
    """How many models can be served at once, of how many."""
    return f"{sum(one['state'] in ('Cached', 'Resident') for one in states)}/{len(states)}"
