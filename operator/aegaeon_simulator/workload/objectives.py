"""Objectives by model, from a CSV file of `model, ttft_s, tbt_s`."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Sequence
from math import inf, nan
from pathlib import Path

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.workload.errors import TraceError
from aegaeon_simulator.workload.trace import Row, open_text

COLUMNS = ("model", "ttft_s", "tbt_s")


def read_slos(path: Path, names: Sequence[str], defaults: Sequence[Slo]) -> tuple[Slo, ...]:
    """The objective of each of these models, in their order: that of the file, else its default. Raises TraceError
    with file, line and remedy for columns that are missing, unknown models and objectives that are not seconds."""
    of: dict[str, Slo] = {}
    try:
        with open_text(path) as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            _check_columns(path, list(reader.fieldnames or []))
            for row in reader:
                _check_row(path, reader.line_num, row)
                name = _model(path, reader.line_num, row, names)
                if name in of:
                    raise TraceError(path, reader.line_num, f"model {name} appears twice; remove one of the lines")
                of[name] = Slo(*(_seconds(path, reader.line_num, row, column) for column in COLUMNS[1:]))
    except (OSError, UnicodeDecodeError, EOFError, zlib.error, csv.Error) as error:
        raise TraceError(path, None, f"cannot be read: {error}") from error
    return tuple(of.get(name, default) for name, default in zip(names, defaults, strict=True))


def _check_columns(path: Path, columns: list[str]) -> None:
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        has = ", ".join(columns) or "none"
        raise TraceError(path, 1, f"lacks the columns {', '.join(missing)}; it has {has}; add them")


def _check_row(path: Path, line: int, row: Row) -> None:
    """Refuse a row that ends before its last column, or leaves one empty."""
    missing = [name for name in COLUMNS if not row[name]]
    if missing:
        raise TraceError(path, line, f"has no {' and no '.join(missing)}; add what is missing, or remove the line")


def _model(path: Path, line: int, row: Row, names: Sequence[str]) -> str:
    name = row["model"]
    if name not in names:
        few = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise TraceError(path, line, f"model {name!r} has no requests; the models are {few}; correct the name")
    return name


def _seconds(path: Path, line: int, row: Row, column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = nan
    if not 0 < value < inf:
        raise TraceError(path, line, f"{column} is {row[column]!r}; it must be seconds, more than 0")
    return value
