"""Traces from CSV files (also .gz): `t_s, model` (or `model_idx`), `input_len, output_len`; optional `model_kind`,
`tenant`, `session`, `pause_s`, `shared_len`."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from aegaeon_simulator.workload.errors import TraceError
from aegaeon_simulator.workload.kinds import ALIASES, KINDS, canonical
from aegaeon_simulator.workload.model import Arrival, Workload

MOST_TOKENS = 1_000_000  # longer than any model's context: a column mixed up, not a request
MOST_MODELS = 100_000  # ids beyond are names, not places in a list
_HINT = "for times in ms or one model alone: python -m aegaeon_simulator.workload.convert FILE OUT"
Row = dict[str, str]


def read_trace(
    path: Path, *, models_file: Path | None = None, kind: str | None = None, known: Collection[str] = ()
) -> Workload:
    """Read a trace. The kind of a model comes from its rows, else from `models_file`, else it is `kind`;
    `known` are kinds beside those of the paper.

    Raises TraceError with file, line and remedy for missing columns, negative or absurd lengths, times out of order and
    unknown kinds. Models keep the order of their ids when these are numbers, else of their first arrival.
    """
    by_file = _kinds_of(models_file) if models_file else {}
    names: list[str] = []
    kinds: dict[str, str] = {}
    rows: list[tuple[str, Arrival]] = []
    last_s = 0.0
    for line, row in _rows(path):
        t_s, name = _time(path, line, row, last_s), _model(path, line, row)
        last_s = t_s
        stated = row.get("model_kind")
        if name not in kinds:
            kinds[name] = _kind(path, line, stated or by_file.get(name) or kind, known)
            names.append(name)
        elif stated and (other := _kind(path, line, stated, known)) != kinds[name]:
            problem = f"model {name} is of kind {other} here and of {kinds[name]} before"
            raise TraceError(path, line, f"{problem}; give it one kind, or another name here")
        rows.append((name, _arrival(path, line, row, t_s)))
    if not rows:
        raise TraceError(path, None, "holds no request")
    order = _ordered(names, by_file)
    index = {name: i for i, name in enumerate(order)}
    spare = kind or kinds[names[0]]
    filled = tuple(kinds.get(name) or _kind(path, None, by_file.get(name) or spare, known) for name in order)
    return Workload(filled, tuple(replace(a, model=index[name]) for name, a in rows), tuple(order))


def _ordered(names: list[str], by_file: dict[str, str]) -> list[str]:
    """Numeric ids count from 0 without gaps, so that `first_models` means what the traces' makers meant."""
    known = list(dict.fromkeys([*by_file, *names]))
    numbers = [parse_count(name, MOST_MODELS - 1) for name in known]
    if not all(number is not None and str(number) == name for number, name in zip(numbers, known, strict=True)):
        return known
    return [str(i) for i in range(max(int(name) for name in known) + 1)]


def open_text(path: Path) -> IO[str]:
    """Open a CSV file, possibly compressed; skips a byte order mark (spreadsheets write one)."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def parse_count(text: str, most: int) -> int | None:
    """The integer from 0 to `most` that the text represents, else None."""
    if not text.isdecimal() or len(text) > len(str(most)) or int(text) > most:
        return None
    return int(text)


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        with open_text(path) as file:
            reader = csv.DictReader(file)
            _check_columns(path, list(reader.fieldnames or []))
            for row in reader:
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError, EOFError, zlib.error, csv.Error) as error:
        raise TraceError(path, None, f"cannot be read: {error}") from error


def _check_columns(path: Path, columns: list[str]) -> None:
    missing = [name for name in ("t_s", "input_len", "output_len") if name not in columns]
    if "model" not in columns and "model_idx" not in columns:
        missing.append("model (or model_idx)")
    if missing:
        has = ", ".join(columns) or "none"
        raise TraceError(path, 1, f"lacks the columns {', '.join(missing)}; it has {has}; add them, or {_HINT}")


def _time(path: Path, line: int, row: Row, last_s: float) -> float:
    try:
        t_s = float(row["t_s"])
    except (TypeError, ValueError):
        raise TraceError(path, line, f"t_s is {row['t_s']!r}; it must be seconds") from None
    if not last_s <= t_s < float("inf"):
        raise TraceError(path, line, f"t_s is {t_s} after {last_s}; sort the rows by time, from 0 upwards")
    return t_s


def _model(path: Path, line: int, row: Row) -> str:
    name = row.get("model_idx") or row.get("model")
    if not name:
        raise TraceError(path, line, "has no model; fill the column model")
    return name


def _tokens(path: Path, line: int, row: Row, column: str, least: int = 1) -> int:
    text = row[column]
    tokens = parse_count(text or "", MOST_TOKENS)
    if tokens is None or tokens < least:
        limits = f"from {least} to {MOST_TOKENS}"
        raise TraceError(path, line, f"{column} is {text!r}; it must be a number of tokens {limits}")
    return tokens


def _arrival(path: Path, line: int, row: Row, t_s: float) -> Arrival:
    """A row's request, before its model has a number."""
    input_tokens, output_tokens = (_tokens(path, line, row, column) for column in ("input_len", "output_len"))
    tenant, session = row.get("tenant") or "", row.get("session") or ""
    shared = _tokens(path, line, row, "shared_len", least=0) if row.get("shared_len") else 0
    return Arrival(
        t_s, 0, input_tokens, output_tokens, tenant, session, pause_s=_pause(path, line, row), shared_tokens=shared
    )


def _pause(path: Path, line: int, row: Row) -> float:
    text = row.get("pause_s") or "0"
    try:
        pause_s = float(text)
    except ValueError:
        pause_s = -1.0
    if not 0.0 <= pause_s < float("inf"):
        raise TraceError(path, line, f"pause_s is {text!r}; it must be seconds, 0 or more")
    return pause_s


def _kind(path: Path, line: int | None, name: str | None, extra: Collection[str]) -> str:
    if name and name in extra:
        return name
    if not name:
        raise TraceError(path, line, "has no model_kind; add the column, or use --models-file or --kind")
    known = canonical(name)
    if known is None:
        raise TraceError(
            path, line, f"unknown kind {name!r}; use one of {', '.join(sorted({*KINDS, *ALIASES, *extra}))}"
        )
    return known


def _kinds_of(path: Path) -> dict[str, str]:
    try:
        with open_text(path) as file:
            return {row["model"]: row["kind"] for row in csv.DictReader(file)}
    except (OSError, KeyError, UnicodeDecodeError, EOFError, zlib.error, csv.Error) as error:
        raise TraceError(path, None, f"not a CSV file of model and kind ({error!r})") from error
