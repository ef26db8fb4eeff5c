"""What engines take beside their slabs, and whether it stays below what is reserved for it."""

from __future__ import annotations

from collections.abc import Mapping

from aegaeon_operator.reconcile.cluster.conditions import Condition, no, unknown, yes
from aegaeon_operator.reconcile.cluster.facts import EngineFacts, Observed
from aegaeon_operator.spec.quantity import format_quantity

_MIB = 1 << 20
KIND = "MemoryReserved"


def outside_slabs(observed: Observed) -> Mapping[str, str] | None:
    """For a GpuPool's status; None while no engine has said."""
    most = _most(observed)
    return (
        None
        if most is None
        else {"reserved": _text(most.outside_reserved_bytes), "peak": _text(most.outside_peak_bytes)}
    )


def memory_reserved(observed: Observed) -> Condition:
    """Whether every engine has stayed below. It serves all the same: the condition is no part of Ready."""
    most = _most(observed)
    if most is None:
        return unknown(KIND, "NotMeasured", "no engine that is attached has said what it takes beside its slabs")
    took = f"{most.name} took up to {_text(most.outside_peak_bytes)} beside its slabs"
    reserved = _text(most.outside_reserved_bytes)
    if most.outside_peak_bytes > most.outside_reserved_bytes:
        text = f"{took}, and {reserved} are reserved for that; raise spec.memory.outsideSlabs"
        return no(KIND, "OutsideSlabsExceeded", text)
    return yes(KIND, "Enough", f"{took}, of {reserved} that are reserved for that")


def _most(observed: Observed) -> EngineFacts | None:
    engines = observed.scheduler.engines if observed.scheduler else ()
    said = [one for one in engines if one.attached and one.outside_peak_bytes]
    return max(said, key=lambda one: one.outside_peak_bytes - one.outside_reserved_bytes, default=None)


def _text(size: int) -> str:
    """Upwards to a MiB: what is measured moves."""
    return format_quantity(-(-size // _MIB) * _MIB)
