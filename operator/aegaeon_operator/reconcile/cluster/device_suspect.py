"""Condition DeviceSuspect: an engine does not use a GPU because it was lost repeatedly."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.conditions import SUSPECT, Condition, no, yes
from aegaeon_operator.reconcile.cluster.facts import Observed, SuspectFacts

KIND = "DeviceSuspect"


def device_suspect(observed: Observed) -> Condition:
    """Return DeviceSuspect; unchanged while the scheduler does not answer. It is no part of Ready."""
    if observed.scheduler is None:
        return _as_before(observed)
    texts = [sentence(device) for device in observed.scheduler.suspects]
    return yes(KIND, SUSPECT, "; ".join(texts)) if texts else _none()


def sentence(device: SuspectFacts) -> str:
    """Return the message for a device, without a count, which would make each loss an Event."""
    where = f" of node {device.node}" if device.node else ""
    return (
        f"{device.engine} does not use GPU {device.uuid}{where} until a probe finds it healthy: it was lost twice "
        f"within ten minutes, last with: {device.error}"
    )


def _as_before(observed: Observed) -> Condition:
    conditions = observed.gpu_pool.status.get("conditions", ()) if observed.gpu_pool else ()
    before = next((condition for condition in conditions if condition["type"] == KIND), None)
    return Condition(KIND, before["status"], before["reason"], before["message"]) if before else _none()


def _none() -> Condition:
    return no(KIND, "NoneSuspect", "engines use all their devices")
