"""What `kubectl get` prints of objects: printer columns of the definitions, evaluated as the API server does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from aegaeon_operator.spec.crd import definitions

Json = dict[str, Any]
_STEP = re.compile(r"\.(?P<field>\w+)|\[\?\(@\.(?P<key>\w+)=='(?P<value>\w+)'\)\]")


@cache  # the definitions take half a second to make
def columns(kind: str) -> list[Json]:
    """Those of the default output, without -o wide."""
    (version,) = definitions()[f"{kind.lower()}s"]["spec"]["versions"]
    return [one for one in version["additionalPrinterColumns"] if not one.get("priority")]


def cell(body: Json, column: Json, now: datetime) -> str:
    """One value; empty where the object has none."""
    found: Any = body
    for step in _STEP.finditer(column["jsonPath"]):
        if step["field"]:
            found = found.get(step["field"]) if found else None
        else:
            found = next((one for one in found or () if one.get(step["key"]) == step["value"]), None)
    if found is None:
        return ""
    return _age(found, now) if column["type"] == "date" else str(found)


def table(bodies: Sequence[Json], now: datetime) -> str:
    """As `kubectl get gpool,mpool`: a table for each kind, by name, an empty line between them."""
    bodies = sorted(bodies, key=lambda one: str(one["metadata"]["name"]))
    kinds = sorted({one["kind"] for one in bodies})
    return "\n\n".join("\n".join(_lines([one for one in bodies if one["kind"] == kind], now)) for kind in kinds)


def rows(bodies: Iterable[Json], now: datetime) -> Iterator[list[str]]:
    """Of objects of one kind: the head, then one row each."""
    for number, body in enumerate(bodies):
        shown = columns(body["kind"])
        if number == 0:
            yield ["NAME", *(one["name"].upper() for one in shown)]
        name = f"{body['kind'].lower()}.serving.aegaeon.io/{body['metadata']['name']}"
        yield [name, *(cell(body, one, now) for one in shown)]


def _lines(bodies: Sequence[Json], now: datetime) -> Iterator[str]:
    found = list(rows(bodies, now))
    widths = [max(map(len, column)) for column in zip(*found, strict=True)]
    for row in found:
        yield "   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _age(created: str, now: datetime) -> str:
    age = now - datetime.fromisoformat(created)
    return f"{age.seconds}s" if age < timedelta(minutes=2) else f"{age.days}d"
