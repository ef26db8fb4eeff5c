"""The conditions of a ModelPool, each as a list of checks in order: the first one that has something to say decides."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.access import by_route, by_service, unreachable, without_engines
from aegaeon_operator.reconcile.cluster.admission import admitted
from aegaeon_operator.reconcile.cluster.conditions import FETCHING, Condition, first_of, no, unknown, yes
from aegaeon_operator.reconcile.cluster.facts import ModelFacts
from aegaeon_operator.reconcile.cluster.served import Served
from aegaeon_operator.reconcile.cluster.windows import ENOUGH_TOKENS
from aegaeon_operator.spec.tenancy import SHORTEST_KEY

_ACCEPTED, _ARTIFACTS, _ADMITTED, _DEGRADED = "Accepted", "ArtifactsAvailable", "Admitted", "Degraded"
_NOTHING = "none of its models is served; see Accepted"
_GOOD = 90  # percent of tokens on time


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
    return first_of((_not_routable, _route_failed, _pool_unreachable, _apart, _unanswered, _service, _route), served)


def degraded(served: Served) -> Condition:
    """Whether its models miss their objective."""
    return first_of((_objective_missed, _no_traffic, _too_few_tokens, _objective_met), served)


def changing(served: Served) -> Condition | None:
    """A model that is to be another one, if any is on its way."""
    return yes("Progressing", "ModelChanging", served.changing) if served.changing else None


# ---- Accepted ------------------------------------------------------------------------------------------------------


def _pool_refused(served: Served) -> Condition | None:
    refusal = served.refusal
    return no(_ACCEPTED, refusal.reason, refusal.message) if refusal else None


def _model_refused(served: Served) -> Condition | None:
    return no(_ACCEPTED, "ModelRefused", served.refused) if served.refused else None


def _secret_unreadable(served: Served) -> Condition | None:
    return yes(_ACCEPTED, "SecretUnreadable", served.unreadable) if served.unreadable else None


def _keys_short(served: Served) -> Condition | None:
    text = f"keys of fewer than {SHORTEST_KEY} characters can be guessed, and a later release will refuse them: "
    return yes(_ACCEPTED, "KeysTooShort", text + served.guessable) if served.guessable else None


def _taken(served: Served) -> Condition:
    return yes(_ACCEPTED, "Accepted", "the GpuPool serves its models")


# ---- ArtifactsAvailable --------------------------------------------------------------------------------------------


def _none_served(served: Served) -> Condition | None:
    return None if served.models else no(_ARTIFACTS, "NothingServed", _NOTHING)


def _scheduler_silent(served: Served) -> Condition | None:
    return unknown(_ARTIFACTS, "SchedulerUnknown", served.wide.silent) if served.wide.silent else None


def _model_failed(served: Served) -> Condition | None:
    broken = [_named(name, one.reason) for name, one in served.facts.items() if one.phase == "failed"]
    return no(_ARTIFACTS, "ModelFailed", "; ".join(sorted(broken))) if broken else None


def _nobody_to_fetch(served: Served) -> Condition | None:
    if served.wide.attached or not _cold(served):
        return None
    nothing = yes(_ARTIFACTS, "ScaledToZero", "files are fetched when the next request starts an engine")
    return without_engines(served.wide, _ARTIFACTS) or nothing


def _fetching(served: Served) -> Condition | None:
    cold = _cold(served)
    if cold and served.wide.from_zero:
        return yes(
            _ARTIFACTS, "ScaledToZero", "files are fetched, and the requests that started an engine wait for them"
        )
    return no(_ARTIFACTS, FETCHING, f"not in a host cache yet: {', '.join(cold)}") if cold else None


def _cached(served: Served) -> Condition:
    absent = sum(one.phase == "absent" for one in served.facts.values())
    if absent:
        on_demand = f"{absent} of {len(served.facts)} models are fetched when a request waits for them"
        return yes(_ARTIFACTS, "Cached", f"{on_demand}: the nodes' disks have no room for all")
    return yes(_ARTIFACTS, "Cached", "all models are in a host cache")


def _cold(served: Served) -> list[str]:
    cold = ((name, one) for name, one in served.facts.items() if one.phase not in _SETTLED and not one.apart)
    return sorted(name + _progress(one) for name, one in cold)


_SETTLED = ("cached", "absent")


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
    if served.models and served.wide.usable and not served.wide.silent:
        return None
    return unknown(_ADMITTED, "NotMeasured", "there is nothing to estimate from")


def _estimated(served: Served) -> Condition:
    wide = served.wide
    return admitted(served.models, wide.demand, served.facts, wide.decoding, wide.device_bytes)


# ---- Routable ------------------------------------------------------------------------------------------------------


def _not_routable(served: Served) -> Condition | None:
    return None if served.models else no("Routable", "NothingServed", _NOTHING)


def _route_failed(served: Served) -> Condition | None:
    return no("Routable", "RouteFailed", served.route_failed) if served.route_failed else None


def _pool_unreachable(served: Served) -> Condition | None:
    return unreachable(served.wide)


def _apart(served: Served) -> Condition | None:
    halves = [_named(name, one.reason) for name, one in served.facts.items() if one.apart and one.phase != "failed"]
    return no("Routable", "NoDecoder", "; ".join(sorted(halves))) if halves else None


def _unanswered(served: Served) -> Condition | None:
    names = sorted(name for name, facts in served.facts.items() if facts.unanswered)
    text = (
        f"nothing is computed for requests of {', '.join(names)}; {served.wide.where} may have an engine that is stuck"
    )
    return no("Routable", "NotAnswering", text) if names else None


def _service(served: Served) -> Condition | None:
    pool = served.pool.value
    return None if pool and pool.spec.gateway.parent_refs else by_service(served.wide)


def _route(served: Served) -> Condition:
    return by_route(served.route_parents)


# ---- Degraded ------------------------------------------------------------------------------------------------------


def _objective_missed(served: Served) -> Condition | None:
    late = [f"{name} {share}%" for name, share in served.traffic.items() if share is not None and share < _GOOD]
    text = f"tokens on time in the last ten minutes: {', '.join(late)}; wanted: {_GOOD}%"
    return yes(_DEGRADED, "ObjectiveMissed", text) if late else None


def _no_traffic(served: Served) -> Condition | None:
    if served.traffic:
        return None
    return no(_DEGRADED, "NoTraffic", "no token in the last ten minutes")


def _too_few_tokens(served: Served) -> Condition | None:
    if any(share is not None for share in served.traffic.values()):
        return None
    return no(_DEGRADED, "TooFewTokens", f"fewer than {ENOUGH_TOKENS} tokens in the last ten minutes")


def _objective_met(served: Served) -> Condition:
    return no(_DEGRADED, "ObjectiveMet", "tokens are on time")
