"""Figures written as SVG. The same drawing gives the same bytes: no dates, ids from a fixed salt, text as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from aegaeon_simulator.figures.errors import FiguresError

_STYLE: Mapping[Any, Any] = {
    "svg.hashsalt": "aegaeon",
    "svg.fonttype": "none",
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


def check_library() -> None:
    """Raises FiguresError without matplotlib."""
    try:
        import_module("matplotlib.backends.backend_svg")
    except ImportError as error:
        raise FiguresError("figures need matplotlib; install it with pip install 'aegaeon[figures]'") from error


@contextmanager
def svg_figure(path: Path, width: float, height: float, style: Mapping[Any, Any]) -> Iterator[Any]:
    """A matplotlib figure of so many inches, saved at the end. Raises FiguresError without matplotlib."""
    check_library()
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({**_STYLE, **style}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
