"""SVG plots of the results. The same results give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aegaeon_simulator.figures.book import Book
from aegaeon_simulator.figures.catalog import FORMS, OURS
from aegaeon_simulator.figures.claims import published
from aegaeon_simulator.figures.measure import PARTS, STALL_QUANTILES
from aegaeon_simulator.figures.svg import svg_figure
from aegaeon_simulator.results.attainment_curve import TARGET
from aegaeon_simulator.settings import POLICIES

_COLOURS = (
    "#d62728",
    "#1f77b4",
    "#17becf",
    "#7f7f7f",
    "#bcbd22",
    "#8c564b",
    "#ff7f0e",
    "#e377c2",
    "#2ca02c",
    "#9467bd",
    "#98df8a",
    "#393b79",
)
COLOUR = dict(zip(POLICIES, _COLOURS, strict=True))
AXES = {"models": "models", "rate": "requests per second of each model", "speedup": "times faster than recorded"}
_STYLE = {"font.size": 8, "axes.grid": True, "grid.alpha": 0.3}


def draw(book: Book, folder: Path) -> list[str]:
    """Every plot into `folder`; the names of the files. Raises FiguresError without matplotlib."""
    names = ["figure-4.svg", "figure-15.svg"]
    with _canvas(1, folder / names[0]) as axes:
        _figure_4(axes[0], book)
    with _canvas(1, folder / names[1]) as axes:
        _figure_15(axes[0], book)
    for name, panel in book.panels.items():
        names.append(f"figure-{name}.svg")
        if panel["figure"] == "14":
            setups = [(name, load) for load in book.loads(name, OURS)]
            with _canvas(len(setups), folder / names[-1]) as axes:
                _figure_14(axes, book, setups)
        else:
            with _canvas(len(FORMS), folder / names[-1]) as axes:
                _curves(axes, book, name)
    return names


@contextmanager
def _canvas(columns: int, path: Path) -> Iterator[list[Any]]:
    with svg_figure(path, 1.5 + 3.2 * max(columns, 2), 3.1, _STYLE) as figure:
        yield list(figure.subplots(1, columns, squeeze=False)[0])


def _curves(axes: list[Any], book: Book, name: str) -> None:
    """Attainment over load, one plot for each form, shaded from the least to the most of the seeds; what was published
    as open marks."""
    panel = book.panels[name]
    for ax, form in zip(axes, FORMS, strict=True):
        for policy in panel["curves"]:
            line = book.line(name, policy, form)
            xs, ys = [x for x, _ in line], [100 * y for _, y in line]
            ours = {"lw": 1.8, "zorder": 3} if policy == OURS else {"lw": 1.0}
            band = [(100 * least, 100 * most) for least, most in book.band(name, policy, form)]
            ax.fill_between(xs, *zip(*band, strict=True), color=COLOUR[policy], alpha=0.15, lw=0)
            ax.plot(xs, ys, ".-", color=COLOUR[policy], label=policy, **ours)
        ax.axhline(100 * TARGET, color="black", lw=0.6, ls=":")
        _marks(ax, name, form)
        ax.set(title=form, xlabel=AXES[panel["axis"]], ylim=(0, 104))
    axes[0].set_ylabel("on time, percent")
    axes[0].figure.suptitle(panel["title"])
    _legend(axes)


def _marks(ax: Any, name: str, form: str) -> None:
    values = published()
    if form == "time":
        for policy, points in values["artifact"].get(name, {}).items():
            label = f"published: {policy}"
            ax.plot(*zip(*points, strict=True), "o", mfc="none", color=COLOUR[policy], ms=6, label=label)
    if form == "token":
        for policy, load in values["paper_crossings"].get(name, {}).items():
            ax.plot([load], [100 * TARGET], "D", mfc="none", color=COLOUR[policy], ms=6, label=f"published: {policy}")


def _figure_4(ax: Any, book: Book) -> None:
    data = book.figure_4
    ax.plot(range(len(data["counts"])), data["counts"], lw=0.5, color=COLOUR["paper"], label="simulated")
    ax.axhline(data["expected"], color=COLOUR[OURS], label=f"Theorem 3.1: {data['expected']:.2f}")
    ax.axhline(46.55, color="black", lw=0.8, ls=":", label="published: 46.55")
    ax.set(xlabel="seconds", ylabel="active models", title=f"{data['models']} models", ylim=(0, data["models"]))
    ax.legend(fontsize=6)


def _figure_14(axes: list[Any], book: Book, setups: list[tuple[str, float]]) -> None:
    """The parts of a request's latency, by policy."""
    for ax, (name, load) in zip(axes, setups, strict=True):
        policies = list(book.panels[name]["curves"])
        bottom = [0.0] * len(policies)
        for part, colour in zip(PARTS, ("#fdae6b", "#e6550d", "#9ecae1", "#3182bd"), strict=True):
            shares = [100 * book.value(name, p, load, "latency_parts")[part] for p in policies]
            ax.barh(policies, shares, left=bottom, color=colour, label=part.replace("_", " "))
            bottom = [b + s for b, s in zip(bottom, shares, strict=True)]
        ax.set(title=f"{load:g} models, {book.panels[name]['title']}", xlabel="percent of latency")
    _legend(axes)


def _legend(axes: list[Any]) -> None:
    """Draw one legend for all plots, beside them, with every label once."""
    pairs = [pair for ax in axes for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    shown = {label: handle for handle, label in reversed(pairs)}
    labels = list(dict.fromkeys(label for _, label in pairs))
    axes[0].figure.legend([shown[label] for label in labels], labels, fontsize=7, loc="outside right upper")


def _figure_15(ax: Any, book: Book) -> None:
    """Delays of model switches, 32 models at 0.1 req/s."""
    for policy in book.panels.get("14-0.1", {}).get("curves", {}):
        stalls = book.value("14-0.1", policy, 32, "stalls_s")
        if stalls is not None:
            ax.plot(stalls, [100 * q for q in STALL_QUANTILES], color=COLOUR[policy], label=policy)
    ax.axvline(1.0, color="black", lw=0.6, ls=":")
    ax.plot([0.0], [50], "D", mfc="none", color="black", label="published: about half at once")
    ax.set(title="32 models, 0.1 req/s per model", xlabel="seconds that a switch waits", ylabel="percent of switches")
    ax.set_xlim(-0.05, 3)
    ax.legend(fontsize=6, loc="lower right")
