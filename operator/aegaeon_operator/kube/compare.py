"""Whether an object is as it should be: everything that we say of it is so, whatever others add."""

from __future__ import annotations

from typing import Any

from aegaeon_operator.spec.quantity import parse_amount


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
    return bool(live == wanted) or _same_amount(live, wanted)


def as_wanted(live: dict[str, Any] | None, wanted: dict[str, Any]) -> bool:
    """Whether nothing needs to be written. A Secret is compared as a whole: an entry too many is a difference."""
    if live is None or not covers(live, wanted):
        return False
    return wanted["kind"] != "Secret" or set(live.get("data") or {}) == set(wanted.get("data") or {})


def _same_amount(live: object, wanted: object) -> bool:
    if not isinstance(live, str) or not isinstance(wanted, str):
        return False
    amount = parse_amount(wanted)
    return amount is not None and parse_amount(live) == amount
