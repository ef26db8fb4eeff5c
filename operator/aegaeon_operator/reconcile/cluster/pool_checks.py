"""Conditions Accepted and Progressing of a GpuPool, each an ordered list of checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aegaeon_operator.reconcile.cluster.conditions import Condition, first_of, no, yes
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Observed
from aegaeon_operator.reconcile.cluster.readiness import SOME, SOME_HELD, SOME_START

_PROGRESSING = "Progressing"
_INCOMPLETE = (SOME, SOME_HELD, SOME_START)


@dataclass(frozen=True, slots=True)
class Applied:
    """The observed state, and the errors of objects that could not be applied."""

    observed: Observed
    failures: Mapping[ChildKey, str]


@dataclass(frozen=True, slots=True)
class Progress:
    """Conditions so far, in order, and the names of workloads with a rollout in progress."""

    conditions: Sequence[Condition]
    rolling: str = ""


def applied(observed: Observed, failures: Mapping[ChildKey, str]) -> Condition:
    """Return Accepted: the pool's objects were applied. Errors of HTTPRoutes are in their ModelPools' statuses."""
    return first_of((_apply_failed, _files_of_a_machine, _all_applied), Applied(observed, failures))


def progressing(conditions: Sequence[Condition], rolling: str = "") -> Condition:
    """Return Progressing: the pool changes without further action."""
    return first_of((_needs_action, _incomplete, _rolling_out, _stable), Progress(conditions, rolling))


def _apply_failed(about: Applied) -> Condition | None:
    of_pool = {key: why for key, why in about.failures.items() if key.kind != "HTTPRoute"}
    text = "; ".join(f"{key.kind} {key.name}: {why}" for key, why in sorted(of_pool.items()))
    return no("Accepted", "ApplyFailed", text) if of_pool else None


def _files_of_a_machine(about: Applied) -> Condition | None:
    """Refuse settings that are for `aegaeon up` only; the API server refuses them, too."""
    pool = about.observed.gpu_pool
    store = pool.value.spec.batches if pool and pool.value else None
    if store is None or not (store.folder or (store.s3 and store.s3.credentials_file)):
        return None
    text = "batches: folder and s3.credentialsFile are for `aegaeon up` only; set claim, or s3.credentialsSecretRef"
    return no("Accepted", "CredentialsFileNotHere", text)


def _all_applied(about: Applied) -> Condition:
    refused = len(about.observed.scheduler.refused) if about.observed.scheduler else 0
    counted = f"; models refused: {refused}, see their ModelPools" if refused else ""
    return yes("Accepted", "Applied", f"all objects of the pool were applied{counted}")


def _needs_action(about: Progress) -> Condition | None:
    """Return False with the reason if the pool does not progress without a change by a user."""
    for condition in about.conditions:
        needs_user = condition.type == "Accepted" or condition.reason in ("NoEngines", "NoGateways")
        if condition.status == "False" and needs_user:
            return no(_PROGRESSING, condition.reason, condition.message)
    return None


def _incomplete(about: Progress) -> Condition | None:
    for condition in about.conditions:
        if condition.status != "True" or condition.reason in _INCOMPLETE:
            return yes(_PROGRESSING, condition.reason, condition.message)
    return None


def _rolling_out(about: Progress) -> Condition | None:
    text = f"rollout in progress: {about.rolling}"
    return yes(_PROGRESSING, "RollingOut", text) if about.rolling else None


def _stable(about: Progress) -> Condition:
    return no(_PROGRESSING, "Stable", "no change in progress")
