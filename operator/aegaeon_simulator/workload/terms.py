"""Tiers and weights of a workload's models, from columns `tier` and `weight` of the file that lists them."""

from __future__ import annotations

import csv
import zlib
from dataclasses import replace
from pathlib import Path

from aegaeon_scheduler.core.domain import Terms, Tier
from aegaeon_simulator.workload.errors import TraceError
from aegaeon_simulator.workload.model import Workload
from aegaeon_simulator.workload.trace import Row, open_text, parse_count

MOST_WEIGHT = 100


def with_terms(workload: Workload, path: Path) -> Workload:
    """The workload with the tiers and weights of the file; a model that is not listed is standard, of weight 1. Without
    either column the workload is returned as it is. Raises TraceError."""
    try:
        with open_text(path) as file:
            reader = csv.DictReader(file)
            if not {"tier", "weight"} & set(reader.fieldnames or []):
                return workload
            terms = {_name(path, reader.line_num, row): _terms(path, reader.line_num, row) for row in reader}
    except (OSError, UnicodeDecodeError, EOFError, zlib.error, csv.Error) as error:
        raise TraceError(path, None, f"cannot be read: {error}") from error
    return replace(workload, terms=tuple(terms.get(name, Terms()) for name in workload.names))


def _name(path: Path, line: int, row: Row) -> str:
    if not row.get("model"):
        raise TraceError(path, line, "has no model; fill the column model")
    return row["model"]


def _terms(path: Path, line: int, row: Row) -> Terms:
    tier, weight = row.get("tier") or Tier.STANDARD.value, row.get("weight") or "1"
    if tier not in {t.value for t in Tier}:
        raise TraceError(path, line, f"unknown tier {tier!r}; use one of {', '.join(t.value for t in Tier)}")
    share = parse_count(weight, MOST_WEIGHT)
    if not share:
        raise TraceError(path, line, f"weight is {weight!r}; it must be a whole number from 1 to {MOST_WEIGHT}")
    return Terms(Tier(tier), share)
