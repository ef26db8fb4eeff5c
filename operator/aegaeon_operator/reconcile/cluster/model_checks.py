"""The conditions of a ModelPool, each an ordered list of checks; the first check that returns a condition decides."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.access import by_route, by_service, unreachable, without_engines
from aegaeon_operator.reconcile.cluster.admission import admitted
from aegaeon_operator.reconcile.cluster.conditions import FETCHING, Condition, first_of, no, unknown, yes
from aegaeon_operator.reconcile.cluster.facts import ModelFacts
from aegaeon_operator.reconcile.cluster.status_inputs import StatusInputs
from aegaeon_operator.reconcile.cluster.windows import ENOUGH_TOKENS
from aegaeon_operator.spec.tenancy import SHORTEST_KEY

_ACCEPTED, _ARTIFACTS, _ADMITTED, _DEGRADED = "Accepted", "ArtifactsAvailable", "Admitted", "Degraded"
_NOTHING = "none of its models is served; see condition Accepted"
_GOOD = 90  # percent of tokens on time


def accepted(served: StatusInputs) -> Condition:
    """Return Accepted: the GpuPool serves it."""
    return first_of((_pool_refused, _model_refused, _secret_unreadable, _keys_short, _taken), served)


def artifacts(served: StatusInputs) -> Condition:
    """Return ArtifactsAvailable: its models are in a host cache."""
    return first_of((_none_served, _scheduler_silent, _model_failed, _no_engine_to_fetch, _fetching, _cached), served)


def fits(served: StatusInputs) -> Condition:
    """Return Admitted: the engines can hold its models and meet their objectives."""
    return first_of((_not_measured, _estimated), served)


def reachable(served: StatusInputs) -> Condition:
    """Return Routable: requests reach its models."""
    return first_of((_not_routable, _route_failed, _pool_unreachable, _apart, _unanswered, _service, _route), served)


def degraded(served: StatusInputs) -> Condition:
    """Return Degraded: its models miss their objective."""
    return first_of((_objective_missed, _no_traffic, _too_few_tokens, _objective_met), served)


def changing(served: StatusInputs) -> Condition | None:
    """Return Progressing if a model is being changed, else None."""
    return yes("Progressing", "ModelChanging", served.changing) if served.changing else None


# ---- Accepted ------------------------------------------------------------------------------------------------------


def _pool_refused(served: StatusInputs) -> Condition | None:
    refusal = served.refusal
    return no(_ACCEPTED, refusal.reason, refusal.message) if refusal else None


def _model_refused(served: StatusInputs) -> Condition | None:
    return no(_ACCEPTED, "ModelRefused", served.refused) if served.refused else None


def _secret_unreadable(served: StatusInputs) -> Condition | None:
    return yes(_ACCEPTED, "SecretUnreadable", served.unreadable) if served.unreadable else None


def _keys_short(served: StatusInputs) -> Condition | None:
    text = f"keys shorter than {SHORTEST_KEY} characters can be guessed and a later release will refuse them; tenants: "
    return yes(_ACCEPTED, "KeysTooShort", text + served.guessable) if served.guessable else None


def _taken(served: StatusInputs) -> Condition:
    return yes(_ACCEPTED, "Accepted", "the GpuPool serves its models")


# ---- ArtifactsAvailable --------------------------------------------------------------------------------------------


def _none_served(served: StatusInputs) -> Condition | None:
    return None if served.models else no(_ARTIFACTS, "NothingServed", _NOTHING)


def _scheduler_silent(served: StatusInputs) -> Condition | None:
    return unknown(_ARTIFACTS, "SchedulerUnknown", served.pool_state.silent) if served.pool_state.silent else None


def _model_failed(served: StatusInputs) -> Condition | None:
    broken = [_named(name, facts.reason) for name, facts in served.facts.items() if facts.phase == "failed"]
    return no(_ARTIFACTS, "ModelFailed", "; ".join(sorted(broken))) if broken else None


def _no_engine_to_fetch(served: StatusInputs) -> Condition | None:
    if served.pool_state.attached or not _cold(served):
        return None
    scaled = yes(_ARTIFACTS, "ScaledToZero", "files are fetched when the next request starts an engine")
    return without_engines(served.pool_state, _ARTIFACTS) or scaled


def _fetching(served: StatusInputs) -> Condition | None:
    cold = _cold(served)
    if cold and served.pool_state.from_zero:
        return yes(_ARTIFACTS, "ScaledToZero", "files are being fetched for the requests that started an engine")
    return no(_ARTIFACTS, FETCHING, f"not in a host cache yet: {', '.join(cold)}") if cold else None


def _cached(served: StatusInputs) -> Condition:
    absent = sum(facts.phase == "absent" for facts in served.facts.values())
    if absent:
        on_demand = f"{absent} of {len(served.facts)} models are fetched on demand"
        return yes(_ARTIFACTS, "Cached", f"{on_demand}: the disk tier is too small for all models")
    return yes(_ARTIFACTS, "Cached", "all models are in a host cache")


def _cold(served: StatusInputs) -> list[str]:
    return sorted(
        name + _progress(facts)
        for name, facts in served.facts.items()
        if facts.phase not in _SETTLED and not facts.apart
    )


_SETTLED = ("cached", "absent")


def _named(model: str, reason: str) -> str:
    """Return a reason with the model's name in front; engines' reasons already have it."""
    return reason if reason.startswith(f"{model}: ") else f"{model}: {reason}"


def _progress(facts: ModelFacts) -> str:
    """Return the progress of a fetch, or "" while it is unknown."""
    if not facts.bytes_total:
        return ""
    done, total = facts.bytes_done / 1e9, facts.bytes_total / 1e9
    pace = f" at {facts.bytes_per_s / 1e6:.3g} MB/s, {facts.remaining_s:.0f} s left" if facts.bytes_per_s else ""
    return f" ({done:.3g} of {total:.3g} GB{pace})"


# ---- Admitted ------------------------------------------------------------------------------------------------------


def _not_measured(served: StatusInputs) -> Condition | None:
    if served.models and served.pool_state.usable and not served.pool_state.silent:
        return None
    return unknown(_ADMITTED, "NotMeasured", "no measurements yet")


def _estimated(served: StatusInputs) -> Condition:
    pool_state = served.pool_state
    return admitted(served.models, pool_state.demand, served.facts, pool_state.decoding, pool_state.device_bytes)


# ---- Routable ------------------------------------------------------------------------------------------------------


def _not_routable(served: StatusInputs) -> Condition | None:
    return None if served.models else no("Routable", "NothingServed", _NOTHING)


def _route_failed(served: StatusInputs) -> Condition | None:
    return no("Routable", "RouteFailed", served.route_failed) if served.route_failed else None


def _pool_unreachable(served: StatusInputs) -> Condition | None:
    return unreachable(served.pool_state)


def _apart(served: StatusInputs) -> Condition | None:
    split = [(name, facts) for name, facts in served.facts.items() if facts.apart and facts.phase != "failed"]
    reasons = sorted(_named(name, facts.reason) for name, facts in split)
    return no("Routable", "NoDecoder", "; ".join(reasons)) if reasons else None


def _unanswered(served: StatusInputs) -> Condition | None:
    names = sorted(name for name, facts in served.facts.items() if facts.unanswered)
    text = f"requests for {', '.join(names)} make no progress; an engine of {served.pool_state.where} may be stuck"
    return no("Routable", "NotAnswering", text) if names else None


def _service(served: StatusInputs) -> Condition | None:
    pool = served.pool.value
    return None if pool and pool.spec.gateway.parent_refs else by_service(served.pool_state)


def _route(served: StatusInputs) -> Condition:
    return by_route(served.route_parents)


# ---- Degraded ------------------------------------------------------------------------------------------------------


def _objective_missed(served: StatusInputs) -> Condition | None:
    late = [f"{name} {share}%" for name, share in served.traffic.items() if share is not None and share < _GOOD]
    text = f"tokens on time in the last ten minutes: {', '.join(late)}; target: {_GOOD}%"
    return yes(_DEGRADED, "ObjectiveMissed", text) if late else None


def _no_traffic(served: StatusInputs) -> Condition | None:
    if served.traffic:
        return None
    return no(_DEGRADED, "NoTraffic", "no tokens in the last ten minutes")


def _too_few_tokens(served: StatusInputs) -> Condition | None:
    if any(share is not None for share in served.traffic.values()):
        return None
    return no(_DEGRADED, "TooFewTokens", f"fewer than {ENOUGH_TOKENS} tokens in the last ten minutes")


def _objective_met(served: StatusInputs) -> Condition:
    return no(_DEGRADED, "ObjectiveMet", "tokens are on time")
