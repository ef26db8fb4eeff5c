"""The timelines as SVG: equal spans give identical bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aegaeon_cli.bench.batch import Switched
from aegaeon_cli.bench.lanes import COMPUTE, shares
from aegaeon_cli.bench.spans import Span, merged
from aegaeon_simulator.figures.svg import svg_figure

_STYLE = {"axes.spines.left": False}
_ROWS = ("kv-out", "weights", "kv-in", "compute")  # as they stand, top down
_COLOUR = {
    "swap-out": "#c2498a",
    "unload": "#9e9e9e",
    "map": "#8ec4de",
    "load": "#1f77b4",
    "swap-in": "#2ca02c",
    "step": "#f0a202",
}
_LEGEND = {
    "swap-out": "KV out",
    "unload": "unmap",
    "map": "map",
    "load": "weights in",
    "swap-in": "KV in",
    "step": "first step",
}
_MODELS = ("#1f77b4", "#2ca02c", "#c2498a", "#f0a202", "#8c564b", "#17becf")
_WAITING = {"busy": (1.0, ""), "switching": (0.35, "////"), "stalled": (0.35, "xx")}


def draw_switch(run: Switched, title: str, path: Path) -> None:
    """One switch: a row for each lane, milliseconds from left to right."""
    moves = [span for span in run.spans if span.what != "step"]
    first = run.of("step")[0]
    end = max(span.end_s for span in moves)
    with svg_figure(path, 9.0, 3.3, _STYLE) as figure:
        from matplotlib.patches import Patch  # svg_figure has said where it is missing

        axes = figure.subplots()
        right = max(end, first.begin_s) * 1e3 * 1.14
        for row, lane in enumerate(_ROWS):
            for span in [s for s in (*moves, first) if s.lane == lane]:
                _bar(axes, span, row, _COLOUR[span.what], right)
            axes.text(right * 1.005, row, _said(run, lane), va="center", fontsize=9, color="#333333")
        axes.axvline(run.limit_s * 1e3, color="black", lw=0.9, ls=":")
        axes.set(xlim=(0, right), ylim=(len(_ROWS) - 0.4, -0.7), xlabel="milliseconds since the switch was asked for")
        axes.set_yticks(range(len(_ROWS)), [f"{lane} lane" for lane in _ROWS])
        axes.tick_params(axis="y", length=0)
        axes.set_title(title, loc="left", fontsize=11)
        note = f"limit: {run.nbytes / 1e6:.0f} MB at memcpy's rate, {run.limit_s * 1e3:.0f} ms"
        axes.text(run.limit_s * 1e3, -0.58, f" {note}", fontsize=8, va="center")
        handles = [Patch(color=_COLOUR[what], label=_LEGEND[what]) for what in _LEGEND]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9)


def _bar(axes: Any, span: Span, row: int, colour: str, right: float) -> None:
    begin = span.begin_s * 1e3
    width = min(span.seconds * 1e3, right - begin)
    axes.barh(row, width, left=begin, height=0.62, color=colour, edgecolor="white", linewidth=0.5)


def _said(run: Switched, lane: str) -> str:
    spans = [span for span in run.spans if span.lane == lane]
    if lane == "compute":
        return f"step of {spans[0].seconds * 1e3:.0f} ms"
    nbytes = sum(span.nbytes for span in spans)
    return f"{nbytes / 1e6:.0f} MB"


def draw_minute(spans: Sequence[Span], seconds: float, title: str, path: Path) -> None:
    """An engine's lanes over a while: the compute lane by model, busy, switching or stalled; its copies below."""
    models = list(shares(spans))
    colour = {model: _MODELS[i % len(_MODELS)] for i, model in enumerate(models)}
    rows = [*models, "weights", "kv-in", "kv-out"]
    with svg_figure(path, 9.0, 1.9 + 0.36 * len(rows), _STYLE) as figure:
        from matplotlib.patches import Patch

        axes = figure.subplots()
        for what, (alpha, hatch) in _WAITING.items():
            chosen = [s for s in merged(spans, 0.002) if s.lane == "compute" and s.what == what]
            for model in models:
                _strip(axes, [s for s in chosen if s.model == model], rows.index(model), colour[model], alpha, hatch)
        for lane in rows[len(models) :]:
            for model in models:
                some = [s for s in spans if s.lane == lane and s.model == model and s.what != "unload"]
                _strip(axes, some, rows.index(lane), colour[model], 1.0, "")
        totals = {what: sum(seconds_of[what] for seconds_of in shares(spans).values()) for what in COMPUTE}
        axes.axhline(len(models) - 0.5, color="#bbbbbb", lw=0.8)
        axes.set(xlim=(0, seconds), ylim=(len(rows) - 0.4, -0.6), xlabel="seconds")
        axes.set_yticks(range(len(rows)), [*models, "weights lane", "kv-in lane", "kv-out lane"])
        axes.tick_params(axis="y", length=0)
        axes.set_title(title, loc="left", fontsize=11)
        labels = {what: f"{what} {totals[what] / seconds:.0%}" for what in COMPUTE}
        handles = [
            Patch(facecolor="#555555", alpha=alpha, hatch=hatch, edgecolor="white", label=labels[what])
            for what, (alpha, hatch) in _WAITING.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9)


def _strip(axes: Any, spans: Sequence[Span], row: int, colour: str, alpha: float, hatch: str) -> None:
    if spans:
        ranges = [(span.begin_s, span.seconds) for span in spans]
        axes.broken_barh(
            ranges, (row - 0.36, 0.72), facecolor=colour, alpha=alpha, hatch=hatch, edgecolor=colour, lw=0.3
        )
