"""The lanes' copies, by the scheduler's event log: how long each took, and its rate beside the link's.

A model's first load on an engine is apart from its later ones: an image's pages are locked behind its first copy, which
goes through the driver's buffers at a third of the link's rate. Later loads copy what was evicted, of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.report import Row

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.log import read

FIRST, LATER = "weights in, a model's first load", "weights in, later loads"
_COPIES = {"SwapOut": "KV out", "SwapIn": "KV in", "Adopt": "KV of another engine in"}
_KINDS = (FIRST, LATER, *_COPIES.values())


@dataclass(frozen=True, slots=True)
class Span:
    """A command that moved bytes: its kind in words."""

    kind: str
    seconds: float
    nbytes: int


def copy_rows(record: Path, link_gb_s: float | None) -> list[Row]:
    """Rows of each kind of copy: number, bytes, time and rate; the bar is for weights whose pages are locked."""
    spans = list(_spans(record))
    loads = sum(span.kind in (FIRST, LATER) for span in spans)
    rows = [Row("weights in: copies", loads, "copies")]
    for kind in _KINDS:
        rows += _rows(kind, [span for span in spans if span.kind == kind], link_gb_s)
    return rows


def _spans(record: Path) -> Iterator[Span]:
    """In the order in which they ended."""
    sent: dict[tuple[str, int], commands.Body] = {}
    processes: dict[str, str] = {}  # a restarted engine has locked nothing yet
    loaded: set[tuple[str, str]] = set()
    for _, event, decided in read(record):
        sent |= {(send.instance, send.id): send.body for send in decided if isinstance(send, commands.Send)}
        if isinstance(event, events.InstanceUp):
            processes[event.instance] = event.incarnation
        if isinstance(event, events.CommandDone) and event.bytes_moved:
            body = sent[event.instance, event.id]
            if isinstance(body, commands.Load):
                load = (processes[event.instance], body.model)
                kind = LATER if load in loaded else FIRST
                loaded.add(load)
            else:
                kind = _COPIES[type(body).__name__]
            yield Span(kind, event.seconds, event.bytes_moved)


def _rows(kind: str, spans: list[Span], link_gb_s: float | None) -> list[Row]:
    rows = [Row(f"{kind}: copies", len(spans), "copies")]
    if not spans:
        return rows
    seconds, nbytes = sum(span.seconds for span in spans), sum(span.nbytes for span in spans)
    rows += [
        Row(f"{kind}: span, median", 1e3 * float(np.median([span.seconds for span in spans])), "ms"),
        Row(f"{kind}: bytes, median", float(np.median([span.nbytes for span in spans])) / 1e6, "MB"),
        Row(f"{kind}: rate of the slowest", min(span.nbytes / span.seconds for span in spans) / 1e9, "GB/s"),
        Row(f"{kind}: rate of all", nbytes / seconds / 1e9, "GB/s"),
    ]
    if kind == LATER and link_gb_s:
        limit = 1e3 * nbytes / (link_gb_s * 1e9)
        rows.append(Row(f"{kind}: spans of all (limit: bytes / link)", 1e3 * seconds, "ms", limit, "<=", 1.15))
    return rows
