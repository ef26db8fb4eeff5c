"""Whether an object is as it should be: everything that we say of it is so, whatever others add."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

_UNITS = {unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_UNITS |= {unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)}
_UNITS["m"] = Decimal("0.001")


def covers(live: Any, wanted: Any) -> bool:
    """Whether `live` has all of `wanted`. Amounts are equal in any notation; empty is the same as left out."""
    if isinstance(wanted, dict):
        live = live if isinstance(live, dict) else {}
        return all(covers(live.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        live = live if isinstance(live, list) else []
        return len(live) == len(wanted) and all(map(covers, live, wanted))
    if wanted in (None, "", 0, False):
        return live in (None, "", 0, False)
    return bool(live == wanted) or (isinstance(wanted, str) and _amount(live) == _amount(wanted) is not None)


def as_wanted(live: dict[str, Any] | None, wanted: dict[str, Any]) -> bool:
    """Whether nothing needs to be written. What Secrets hold is compared as a whole, and labels of a selector too."""
    if live is None or not covers(live, wanted):
        return False
    return wanted["kind"] != "Secret" or set(live.get("data") or {}) == set(wanted.get("data") or {})


def _amount(value: object) -> Decimal | None:
    if not isinstance(value, str):
        return None
    unit = next((unit for unit in ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei", *_UNITS) if value.endswith(unit)), "")
    try:
        return Decimal(value.removesuffix(unit)) * (_UNITS[unit] if unit else 1)
    except InvalidOperation:
        return None
