"""The conditions of a ModelPool, each as a list of checks in order: the first one that has something to say decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aegaeon_operator.reconcile.cluster.access import routable, without_engines, without_scheduler
from aegaeon_operator.reconcile.cluster.admission import Demand, admitted, demand
from aegaeon_operator.reconcile.cluster.attach import guessable, unreadable
from aegaeon_operator.reconcile.cluster.conditions import FETCHING, Condition, first_of, no, unknown, yes
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Live, ModelFacts, Observed
from aegaeon_operator.reconcile.cluster.readiness import engines
from aegaeon_operator.reconcile.cluster.windows import ENOUGH_TOKENS
from aegaeon_operator.spec.resources import ModelPool, ServedModel
from aegaeon_operator.spec.tenancy import SHORTEST_KEY

_ACCEPTED, _ARTIFACTS, _ADMITTED, _DEGRADED = "Accepted", "ArtifactsAvailable", "Admitted", "Degraded"
_NOTHING = "none of its models is served; see Accepted"
_GOOD = 0.9  # share of tokens on time


@dataclass(frozen=True, slots=True)
class Served:
    """What the conditions of one ModelPool are decided from. `models`: those of it that the GpuPool serves."""

    observed: Observed
    wanted: Desired
    pool: Live[ModelPool]
    models: tuple[ServedModel, ...]
    failures: Mapping[ChildKey, str]
    demand: Demand

    @classmethod
    def each(cls, observed: Observed, wanted: Desired, failures: Mapping[ChildKey, str]) -> Iterator[Served]:
        """Of every ModelPool. What is the same for all is computed once."""
        known = observed.scheduler.models if observed.scheduler else {}
        whole = demand(wanted.attached.served, known)
        for pool in observed.model_pools:
            yield cls(observed, wanted, pool, tuple(wanted.attached.models_of(pool.uid)), failures, whole)

    def facts(self) -> dict[str, ModelFacts]:
        """What the scheduler knows of each model and adapter, by name."""
        known = self.observed.scheduler.models if self.observed.scheduler else {}
        return {name: known.get(name, ModelFacts()) for name in self.names}

    def said(self, said: Mapping[str, str]) -> str:
        """What the scheduler says of these models and of no others."""
        return "; ".join(f"{name}: {said[name]}" for name in self.names if name in said)

    @property
    def names(self) -> tuple[str, ...]:
        """Of its models and their adapters."""
        return tuple(name for model in self.models for name in model.names)


def accepted(served: Served) -> Condition:
    """Whether the GpuPool takes it."""
    return first_of((_pool_refused, _model_refused, _secret_unreadable, _keys_short, _taken), served)


def artifacts(served: Served) -> Condition:
    """Whether its models are in a host cache."""
    return first_of((_none_served, _scheduler_silent, _model_failed, _nobody_to_fetch, _fetching, _cached), served)


def fits(served: Served) -> Condition:
    """Whether its engines can hold its models and keep their objectives."""
    return first_of((_not_measured, _estimated), served)


def reachable(served: Served) -> Condition:
    """Whether requests reach its models."""
    return first_of((_not_routable, _routable), served)


def degraded(served: Served) -> Condition:
    """Whether its models miss their objective."""
    return first_of((_objective_missed, _no_traffic, _too_few_tokens, _objective_met), served)


def changing(served: Served) -> Condition | None:
    """A model that is to be another one, if any is on its way."""
    text = served.said(served.observed.scheduler.changing if served.observed.scheduler else {})
    return yes("Progressing", "ModelChanging", text) if text else None


# ---- Accepted ------------------------------------------------------------------------------------------------------


def _pool_refused(served: Served) -> Condition | None:
    refusal = served.wanted.attached.refused.get(served.pool.uid)
    return no(_ACCEPTED, refusal.reason, refusal.message) if refusal else None


def _model_refused(served: Served) -> Condition | None:
    refused = served.said(served.observed.scheduler.refused if served.observed.scheduler else {})
    return no(_ACCEPTED, "ModelRefused", refused) if refused else None


def _secret_unreadable(served: Served) -> Condition | None:
    text = unreadable(served.observed, served.pool)
    return yes(_ACCEPTED, "SecretUnreadable", text) if text else None


def _keys_short(served: Served) -> Condition | None:
    names = guessable(served.observed, served.pool)
    text = f"keys of fewer than {SHORTEST_KEY} characters can be guessed, and a later release will refuse them: {names}"
    return yes(_ACCEPTED, "KeysTooShort", text) if names else None


def _taken(served: Served) -> Condition:
    return yes(_ACCEPTED, "Accepted", "the GpuPool serves its models")


# ---- ArtifactsAvailable --------------------------------------------------------------------------------------------


def _none_served(served: Served) -> Condition | None:
    return None if served.models else no(_ARTIFACTS, "NothingServed", _NOTHING)


def _scheduler_silent(served: Served) -> Condition | None:
    if served.observed.scheduler is not None:
        return None
    return unknown(_ARTIFACTS, "SchedulerUnknown", without_scheduler(served.observed))


def _model_failed(served: Served) -> Condition | None:
    broken = [_named(name, one.reason) for name, one in served.facts().items() if one.phase == "failed"]
    return no(_ARTIFACTS, "ModelFailed", "; ".join(sorted(broken))) if broken else None


def _nobody_to_fetch(served: Served) -> Condition | None:
    scheduler = served.observed.scheduler
    if not _cold(served) or (scheduler and any(one.attached for one in scheduler.engines)):
        return None
    nothing = yes(_ARTIFACTS, "ScaledToZero", "files are fetched when the next request starts an engine")
    return without_engines(served.observed, _ARTIFACTS) or nothing


def _fetching(served: Served) -> Condition | None:
    cold = _cold(served)
    return no(_ARTIFACTS, FETCHING, f"not in a host cache yet: {', '.join(cold)}") if cold else None


def _cached(served: Served) -> Condition:
    return yes(_ARTIFACTS, "Cached", "all models are in a host cache")


def _cold(served: Served) -> list[str]:
    return sorted(name + _progress(one) for name, one in served.facts().items() if one.phase != "cached")


def _named(model: str, reason: str) -> str:
    """Engines begin their reasons with the model's name."""
    return reason if reason.startswith(f"{model}: ") else f"{model}: {reason}"


def _progress(facts: ModelFacts) -> str:
    """How far a fetch is, as far as it is known."""
    if not facts.bytes_total:
        return ""
    done, total = facts.bytes_done / 1e9, facts.bytes_total / 1e9
    pace = f" at {facts.bytes_per_s / 1e6:.3g} MB/s, {facts.remaining_s:.0f} s left" if facts.bytes_per_s else ""
    return f" ({done:.3g} of {total:.3g} GB{pace})"


# ---- Admitted ------------------------------------------------------------------------------------------------------


def _not_measured(served: Served) -> Condition | None:
    if served.models and served.observed.scheduler is not None and served.observed.spec is not None:
        return None
    return unknown(_ADMITTED, "NotMeasured", "there is nothing to estimate from")


def _estimated(served: Served) -> Condition:
    observed, spec = served.observed, served.observed.spec
    assert spec is not None
    assert observed.scheduler is not None
    found = {role: one.wanted for role, one in engines(observed, spec).items() if role != "prefill"}
    decoding = sum(found.values()) or sum(spec.roles[role].max or 0 for role in found)  # as there may be, when needed
    return admitted(served.models, served.demand, observed.scheduler.models, decoding, spec.memory.device_bytes)


# ---- Routable ------------------------------------------------------------------------------------------------------


def _not_routable(served: Served) -> Condition | None:
    return None if served.models else no("Routable", "NothingServed", _NOTHING)


def _routable(served: Served) -> Condition:
    return routable(served.observed, served.pool, served.failures)


# ---- Degraded ------------------------------------------------------------------------------------------------------


def _objective_missed(served: Served) -> Condition | None:
    late = [
        f"{name} {one.tokens_on_time / one.output_tokens:.0%}"
        for name, one in served.facts().items()
        if one.output_tokens >= ENOUGH_TOKENS and one.tokens_on_time < _GOOD * one.output_tokens
    ]
    text = f"tokens on time in the last ten minutes: {', '.join(late)}; wanted: {_GOOD:.0%}"
    return yes(_DEGRADED, "ObjectiveMissed", text) if late else None


def _no_traffic(served: Served) -> Condition | None:
    if any(one.output_tokens for one in served.facts().values()):
        return None
    return no(_DEGRADED, "NoTraffic", "no token in the last ten minutes")


def _too_few_tokens(served: Served) -> Condition | None:
    if any(one.output_tokens >= ENOUGH_TOKENS for one in served.facts().values()):
        return None
    return no(_DEGRADED, "TooFewTokens", f"fewer than {ENOUGH_TOKENS} tokens in the last ten minutes")


def _objective_met(served: Served) -> Condition:
    return no(_DEGRADED, "ObjectiveMet", "tokens are on time")
