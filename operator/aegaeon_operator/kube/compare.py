"""Comparison of a live object with its manifest; fields that other managers add do not count."""

from __future__ import annotations

from typing import Any

from aegaeon_operator.spec.quantity import parse_amount


def covers(live: Any, desired: Any) -> bool:
    """Return whether `live` has all of `desired`. Amounts are equal in any notation; empty equals absent."""
    if isinstance(desired, dict):
        live = live if isinstance(live, dict) else {}
        return all(covers(live.get(name), value) for name, value in desired.items())
    if isinstance(desired, list):
        live = live if isinstance(live, list) else []
        return len(live) == len(desired) and all(map(covers, live, desired))
    if desired in (None, "", 0, False):
        return live in (None, "", 0, False)
    return bool(live == desired) or _same_amount(live, desired)


def is_up_to_date(live: dict[str, Any] | None, desired: dict[str, Any]) -> bool:
    """Return whether nothing needs to be written. A Secret is compared as a whole: an extra entry is a difference."""
    if live is None or not covers(live, desired):
        return False
    return desired["kind"] != "Secret" or set(live.get("data") or {}) == set(desired.get("data") or {})


def _same_amount(live: object, desired: object) -> bool:
    if not isinstance(live, str) or not isinstance(desired, str):
        return False
    amount = parse_amount(desired)
    return amount is not None and parse_amount(live) == amount
