"""The inputs of a ModelPool's status: equal inputs give an equal status, apart from the time of a transition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from aegaeon_operator.reconcile.cluster.attach import Attached
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import (
    UNKNOWN_MODEL,
    ChildKey,
    Json,
    Live,
    ModelFacts,
    Observed,
    Refusal,
    SchedulerFacts,
)
from aegaeon_operator.reconcile.cluster.pool_state import PoolState
from aegaeon_operator.reconcile.cluster.resolve import Resolved
from aegaeon_operator.reconcile.cluster.windows import attainment
from aegaeon_operator.spec.resources import ModelPool, ServedModel

_NONE = Resolved()
_NO_ROUTE: Json = {}


class StatusInputs(NamedTuple):
    """The inputs for a ModelPool. `models`: its served models; `facts`: of these and their adapters by name; `traffic`:
    percentage of tokens on time for those with tokens, None: too few tokens. `unserved`: reasons by other name.
    `refused`, `changing`: messages of the scheduler about its models."""

    pool_state: PoolState
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

    @classmethod
    def each(
        cls, pool_state: PoolState, observed: Observed, desired: Desired, failures: Mapping[ChildKey, str]
    ) -> Iterator[StatusInputs]:
        """Yield the inputs of every ModelPool."""
        scheduler = observed.scheduler or SchedulerFacts("")
        for pool in observed.model_pools:
            names = desired.attached.names_of(pool.uid)
            resolved = desired.attached.resolved.get(pool.uid, _NONE)
            route = ChildKey("HTTPRoute", pool.namespace, pool.name)
            facts = {name: scheduler.models.get(name, UNKNOWN_MODEL) for name in names}
            yield cls(
                pool_state,
                pool,
                pool.status,
                tuple(desired.attached.models_of(pool.uid)),
                facts,
                {name: attainment(model) for name, model in facts.items() if model.output_tokens},
                _unserved(desired.attached, pool),
                desired.attached.refused.get(pool.uid),
                _joined(scheduler.refused, names),
                _joined(scheduler.changing, names),
                resolved.unreadable,
                resolved.guessable,
                failures.get(route, ""),
                observed.children.get(route, _NO_ROUTE).get("status", {}).get("parents", []),
            )


def _unserved(attached: Attached, pool: Live[ModelPool]) -> dict[str, str]:
    refusal = attached.refused.get(pool.uid)
    if refusal is None or pool.value is None:
        return {}
    reasons = {}
    for name in (name for model in pool.value.spec.models for name in model.names):
        why, owner = attached.failed.get((pool.uid, name), ""), attached.names.get(name)
        if why or owner is None or owner.uid != pool.uid:
            reasons[name] = why or refusal.message
    return reasons


def _joined(messages: Mapping[str, str], names: list[str]) -> str:
    return "; ".join(f"{name}: {messages[name]}" for name in names if name in messages) if messages else ""
