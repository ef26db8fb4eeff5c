"""Whether engines leave GPUs alone that were lost again and again, as the scheduler heard it from them."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.conditions import SUSPECT, Condition, no, yes
from aegaeon_operator.reconcile.cluster.facts import Observed, SuspectFacts

KIND = "DeviceSuspect"


def device_suspect(observed: Observed) -> Condition:
    """True while one is left alone; without an answer of the scheduler as it was. It is no part of Ready."""
    if observed.scheduler is None:
        return _as_before(observed)
    texts = [sentence(device) for device in observed.scheduler.suspects]
    return yes(KIND, SUSPECT, "; ".join(texts)) if texts else _none()


def sentence(device: SuspectFacts) -> str:
    """Without how often, which would be news each time."""
    where = f" of node {device.node}" if device.node else ""
    return (
        f"{device.engine} leaves GPU {device.uuid}{where} alone until a probe finds it healthy: it was lost twice "
        f"within ten minutes, the last time with: {device.error}"
    )


def _as_before(observed: Observed) -> Condition:
    conditions = observed.gpu_pool.status.get("conditions", ()) if observed.gpu_pool else ()
    before = next((each for each in conditions if each["type"] == KIND), None)
    return Condition(KIND, before["status"], before["reason"], before["message"]) if before else _none()


def _none() -> Condition:
    return no(KIND, "NoneSuspect", "engines take all devices that they have")
