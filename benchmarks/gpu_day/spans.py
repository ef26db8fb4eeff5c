"""What the lanes copied, by the scheduler's event log: how long each copy took, and its rate beside the link's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.report import Row

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.log import read

_COPIES = {"Load": "weights in", "SwapOut": "KV out", "SwapIn": "KV in", "Adopt": "KV of another engine in"}


def copy_rows(record: Path, link_gb_s: float | None) -> list[Row]:
    """Of each kind of copy: how many, and of the largest ones the median time and its rate."""
    return [row for kind, spans in _spans(record).items() for row in _rows(kind, spans, link_gb_s)]


def _spans(record: Path) -> dict[str, list[tuple[float, int]]]:
    """Seconds and bytes of every command that moved bytes, by kind."""
    kinds: dict[tuple[str, int], str] = {}
    spans: dict[str, list[tuple[float, int]]] = {kind: [] for kind in _COPIES}
    for _, event, decided in read(record):
        sent = [command for command in decided if isinstance(command, commands.Send)]
        kinds |= {(str(one.instance), one.id): type(one.body).__name__ for one in sent}
        if isinstance(event, events.CommandDone) and event.bytes_moved:
            spans[kinds[str(event.instance), event.id]].append((event.seconds, event.bytes_moved))
    return spans


def _rows(kind: str, spans: list[tuple[float, int]], link_gb_s: float | None) -> list[Row]:
    what = _COPIES[kind]
    rows = [Row(f"{what}: copies", len(spans), "copies")]
    if not spans:
        return rows
    seconds, nbytes = np.array(spans).T
    largest = nbytes >= 0.9 * nbytes.max()
    taken, moved = float(np.median(seconds[largest])), float(np.median(nbytes[largest]))
    rows += [
        Row(f"{what}: span of the largest, median", 1e3 * taken, "ms"),
        Row(f"{what}: their bytes", moved / 1e6, "MB"),
    ]
    if kind == "Load" and link_gb_s:
        limit = 1e3 * moved / (link_gb_s * 1e9)
        return [*rows, Row(f"{what}: span (limit: bytes / link)", 1e3 * taken, "ms", limit, "<=", 1.15)]
    return [*rows, Row(f"{what}: their rate", moved / taken / 1e9, "GB/s")]
