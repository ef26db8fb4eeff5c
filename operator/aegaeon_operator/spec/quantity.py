"""Kubernetes quantities of bytes ("512Mi") and durations ("100ms") as plain numbers.

Inside the program bytes are int and seconds are float; only manifests have the notation.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_AMOUNT = re.compile(r"(?P<number>[0-9]{1,30}(?:\.[0-9]{1,30})?)(?P<suffix>[EPTGMK]i|[kMGTPEm])?", re.ASCII)
_BYTES_LIMIT = 2**63
# Maximum characters of either notation: it bounds the API server's estimate of a rule's cost.
_LONGEST = 64

# The patterns for the API server; its rules check sums and bounds.
QUANTITY = r"^[0-9]{1,30}(\.[0-9]{1,30})?([EPTGMK]i|[kMGTPE])?$"
DURATION = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$"

_NANOSECONDS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_DURATION_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ns|us|µs|ms|s|m|h)", re.ASCII)


def parse_amount(text: str) -> Decimal | None:
    """Parse any Kubernetes quantity: bytes as below, and thousandths of a CPU (`500m`); None: malformed."""
    match = _AMOUNT.fullmatch(text)
    return None if match is None else Decimal(match["number"]) * _SUFFIXES[match["suffix"] or ""]


def parse_quantity(value: object) -> int:
    """Parse a Kubernetes quantity of bytes: `512Mi`, `1.5Gi`, `2G`, `4096`. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(_not_a_quantity(value))
    size = parse_amount(str(value))
    if size is None or str(value).endswith("m"):
        raise ValueError(_not_a_quantity(value))
    if size != int(size):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    if size >= _BYTES_LIMIT:
        raise ValueError(f"{value!r} is too large; a quantity must be less than 8Ei")
    return int(size)


def format_quantity(size_bytes: int) -> str:
    """Return the shortest exact notation: 536870912 -> `512Mi`, 1000 -> `1000`."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        factor = int(_SUFFIXES[suffix])
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{suffix}"
    return str(size_bytes)


def parse_duration(value: object) -> float:
    """Parse a duration in seconds: `100ms`, `10s`, `1m30s`. Raises ValueError."""
    parts = _DURATION_PART.findall(value) if isinstance(value, str) and len(value) <= _LONGEST else []
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError(f"{value!r} is not a duration; write a number with a unit, such as 100ms, 10s or 1m30s")
    return float(sum(Decimal(number) * _NANOSECONDS[unit] for number, unit in parts) / 10**9)


def format_duration(seconds: float) -> str:
    """Return the notation, exact to the nanosecond, in the largest exact unit: 0.1 -> `100ms`, 90 -> `90s`."""
    nanoseconds = round(seconds * 1e9)
    for unit in ("s", "ms", "us"):
        if nanoseconds % _NANOSECONDS[unit] == 0:
            return f"{nanoseconds // _NANOSECONDS[unit]}{unit}"
    return f"{nanoseconds}ns"


def _not_a_quantity(value: object) -> str:
    return f"{value!r} is not a quantity of bytes; write a number with an optional unit, such as 4096, 512Mi or 2G"


Quantity = Annotated[
    int,
    BeforeValidator(parse_quantity),
    PlainSerializer(format_quantity, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": _LONGEST,
            "pattern": QUANTITY,
        }
    ),
]
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "maxLength": _LONGEST, "pattern": DURATION}),
]
