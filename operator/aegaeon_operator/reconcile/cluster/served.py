"""What the status of one ModelPool is made from, and nothing else: as long as it is the same, so is the status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from aegaeon_operator.reconcile.cluster.attach import Attached, guessable, unreadable
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Live, ModelFacts, Observed, Refusal, SchedulerFacts
from aegaeon_operator.reconcile.cluster.pool_wide import PoolWide
from aegaeon_operator.reconcile.cluster.windows import attainment
from aegaeon_operator.spec.resources import ModelPool, ServedModel

_UNKNOWN = ModelFacts()


@dataclass(frozen=True, slots=True)
class Served:
    """Of one ModelPool. `models`: those of it that the GpuPool serves; `facts` of them and their adapters by name;
    `traffic` of those of them with tokens: percent on time, None where they are too few to tell. `unserved`: its other
    names, and why. `refused` and `changing` is what the scheduler says of its models."""

    wide: PoolWide
    pool: Live[ModelPool]
    status: Json
    models: tuple[ServedModel, ...]
    facts: Mapping[str, ModelFacts]
    traffic: Mapping[str, int | None]
    unserved: Mapping[str, str]
    refusal: Refusal | None
    refused: str
    changing: str
    unreadable: str
    guessable: str
    route_failed: str
    route_parents: list[Json]
    now: datetime = field(compare=False)

    @classmethod
    def each(cls, observed: Observed, wanted: Desired, failures: Mapping[ChildKey, str]) -> Iterator[Served]:
        """Of every ModelPool."""
        wide = PoolWide.of(observed, wanted)
        scheduler = observed.scheduler or SchedulerFacts("")
        for pool in observed.model_pools:
            names = wanted.attached.names_of(pool.uid)
            route = ChildKey("HTTPRoute", pool.namespace, pool.name)
            facts = {name: scheduler.models.get(name, _UNKNOWN) for name in names}
            yield cls(
                wide,
                pool,
                pool.status,
                tuple(wanted.attached.models_of(pool.uid)),
                facts,
                {name: attainment(model) for name, model in facts.items() if model.output_tokens},
                _unserved(wanted.attached, pool),
                wanted.attached.refused.get(pool.uid),
                _said(scheduler.refused, names),
                _said(scheduler.changing, names),
                unreadable(observed, pool),
                guessable(observed, pool),
                failures.get(route, ""),
                observed.children.get(route, {}).get("status", {}).get("parents", []),
                observed.now,
            )


def _unserved(attached: Attached, pool: Live[ModelPool]) -> dict[str, str]:
    refusal = attached.refused.get(pool.uid)
    if refusal is None or pool.value is None:
        return {}
    found = {}
    for name in (name for model in pool.value.spec.models for name in model.names):
        why, owner = attached.failed.get((pool.uid, name), ""), attached.names.get(name)
        if why or owner is None or owner.uid != pool.uid:
            found[name] = why or refusal.message
    return found


def _said(said: Mapping[str, str], names: list[str]) -> str:
    return "; ".join(f"{name}: {said[name]}" for name in names if name in said) if said else ""
