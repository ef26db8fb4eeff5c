"""Timelines for a terminal: a bar for every span, a table of seconds by model."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from aegaeon_cli.bench.batch import Switched
from aegaeon_cli.bench.lanes import COMPUTE, shares
from aegaeon_cli.bench.spans import LANES, Span

_CELLS = 48
_STYLES = {"kv-out": "magenta", "weights": "cyan", "kv-in": "green", "compute": "yellow"}


def timeline(run: Switched) -> Table:
    """One switch: lanes from top to bottom, time from left to right, up to a little after the first step's begin."""
    spans = [span for span in run.spans if span.what != "step"] + run.of("step")[:1]
    total_s = 1.1 * max(run.moved_s, spans[-1].begin_s)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("lane", "what", "model"):
        table.add_column(column, no_wrap=True)
    for column in ("from", "to", "MB"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(f"0 to {total_s * 1e3:.0f} ms", no_wrap=True)
    for span in sorted(spans, key=lambda span: (LANES.index(span.lane), span.begin_s)):
        table.add_row(*_row(span, total_s))
    return table


def _row(span: Span, total_s: float) -> list[Text | str]:
    size = f"{span.nbytes / 1e6:.1f}" if span.nbytes else ""
    bar = Text(bar_of(span.begin_s, span.end_s, total_s, _CELLS), _STYLES[span.lane])
    return [span.lane, span.what, span.model, f"{span.begin_s * 1e3:.1f}", f"{span.end_s * 1e3:.1f}", size, bar]


def bar_of(begin: float, end: float, total: float, cells: int) -> str:
    """`   ███   `: the place of a span within `total`; at least one cell wide."""
    first = min(int(begin / total * cells), cells - 1)
    last = max(min(-(-end * cells // total), cells), first + 1)
    return " " * first + "█" * int(last - first)


def minute(spans: Sequence[Span], seconds: float) -> Table:
    """Seconds of an engine's compute lane, by model."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("model", no_wrap=True)
    for column in (*COMPUTE, "of the time"):
        table.add_column(column, justify="right", no_wrap=True)
    total = dict.fromkeys(COMPUTE, 0.0)
    for model, seconds_of in shares(spans).items():
        table.add_row(model, *_seconds(seconds_of), f"{sum(seconds_of.values()) / seconds:.1%}")
        total = {what: total[what] + seconds_of[what] for what in COMPUTE}
    table.add_row("all", *_seconds(total), f"{sum(total.values()) / seconds:.1%}", style="bold")
    return table


def _seconds(seconds_of: dict[str, float]) -> list[str]:
    return [f"{seconds_of[what]:.2f} s" for what in COMPUTE]
