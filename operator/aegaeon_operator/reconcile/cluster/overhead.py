"""Memory that engines use outside their slabs, and condition MemoryReserved: it stays below the reserved size."""

from __future__ import annotations

from collections.abc import Mapping

from aegaeon_operator.reconcile.cluster.conditions import Condition, no, unknown, yes
from aegaeon_operator.reconcile.cluster.facts import EngineFacts, Observed
from aegaeon_operator.spec.quantity import format_quantity

_MIB = 1 << 20
KIND = "MemoryReserved"


def outside_slabs(observed: Observed) -> Mapping[str, str] | None:
    """Return the memory outside the slabs for a GpuPool's status; None while no engine has reported."""
    most = _most(observed)
    return (
        None
        if most is None
        else {"reserved": _text(most.outside_reserved_bytes), "peak": _text(most.outside_peak_bytes)}
    )


def memory_reserved(observed: Observed) -> Condition:
    """Return MemoryReserved. An engine above the limit still serves, so the condition is no part of Ready."""
    most = _most(observed)
    if most is None:
        return unknown(KIND, "NotMeasured", "no attached engine has reported its memory outside the slabs")
    peak = f"{most.name} used up to {_text(most.outside_peak_bytes)} outside its slabs"
    reserved = _text(most.outside_reserved_bytes)
    if most.outside_peak_bytes > most.outside_reserved_bytes:
        text = f"{peak}, more than the reserved {reserved}; raise spec.memory.outsideSlabs"
        return no(KIND, "OutsideSlabsExceeded", text)
    return yes(KIND, "Enough", f"{peak} of the reserved {reserved}")


def _most(observed: Observed) -> EngineFacts | None:
    engines = observed.scheduler.engines if observed.scheduler else ()
    reported = [engine for engine in engines if engine.attached and engine.outside_peak_bytes]
    return max(reported, key=lambda engine: engine.outside_peak_bytes - engine.outside_reserved_bytes, default=None)


def _text(size: int) -> str:
    """Return a size rounded up to a MiB, so that small changes of the measurement do not show."""
    return format_quantity(-(-size // _MIB) * _MIB)
