"""Two conditions of a GpuPool as lists of checks in order: what could not be applied, and what is on its way."""

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
    """What could not be written to the cluster, and why."""

    observed: Observed
    failures: Mapping[ChildKey, str]


@dataclass(frozen=True, slots=True)
class Progress:
    """Conditions so far, in order, and the names of workloads that are being replaced."""

    conditions: Sequence[Condition]
    rolling: str = ""


def applied(observed: Observed, failures: Mapping[ChildKey, str]) -> Condition:
    """Whether the cluster has what the pool needs. Routes are ModelPools' own: what is wrong with one stands there."""
    return first_of((_apply_failed, _files_of_a_machine, _all_applied), Applied(observed, failures))


def progressing(conditions: Sequence[Condition], rolling: str = "") -> Condition:
    """Whether something changes by itself."""
    return first_of((_waits_for_a_person, _waits, _rolling_out, _stable), Progress(conditions, rolling))


def _apply_failed(about: Applied) -> Condition | None:
    of_pool = {key: why for key, why in about.failures.items() if key.kind != "HTTPRoute"}
    text = "; ".join(f"{key.kind} {key.name}: {why}" for key, why in sorted(of_pool.items()))
    return no("Accepted", "ApplyFailed", text) if of_pool else None


def _files_of_a_machine(about: Applied) -> Condition | None:
    """What `aegaeon up` alone takes. The API server refuses it already."""
    pool = about.observed.gpu_pool
    store = pool.value.spec.batches if pool and pool.value else None
    if store is None or not (store.folder or (store.s3 and store.s3.credentials_file)):
        return None
    text = "batches: folder and s3.credentialsFile are for `aegaeon up`; give claim, or s3.credentialsSecretRef"
    return no("Accepted", "CredentialsFileNotHere", text)


def _all_applied(about: Applied) -> Condition:
    refused = len(about.observed.scheduler.refused) if about.observed.scheduler else 0
    counted = f"; models refused, see their ModelPools: {refused}" if refused else ""
    return yes("Accepted", "Applied", f"everything that the pool needs is in the cluster{counted}")


def _waits_for_a_person(about: Progress) -> Condition | None:
    """What is refused: nothing is on its way."""
    refused = (one for one in about.conditions if one.status == "False")
    found = next((one for one in refused if one.type == "Accepted" or one.reason in ("NoEngines", "NoGateways")), None)
    return no(_PROGRESSING, found.reason, found.message) if found else None


def _waits(about: Progress) -> Condition | None:
    found = next((one for one in about.conditions if one.status != "True" or one.reason in _INCOMPLETE), None)
    return yes(_PROGRESSING, found.reason, found.message) if found else None


def _rolling_out(about: Progress) -> Condition | None:
    text = f"not all pods are as the spec says yet: {about.rolling}"
    return yes(_PROGRESSING, "RollingOut", text) if about.rolling else None


def _stable(about: Progress) -> Condition:
    return no(_PROGRESSING, "Stable", "nothing is changing")
