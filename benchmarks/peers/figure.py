"""docs/images/peers.svg, and peers-LEVEL.svg of processors below AVX-512: tokens on time and times to first tokens over
the load, a line for each system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aegaeon_simulator.figures.svg import svg_figure

PICTURES = Path(__file__).parents[2] / "docs/images"
_OURS = ("#1f77b4", "#2ca02c")
_PEERS = ("#c2498a", "#f0a202", "#8c564b", "#9e9e9e", "#17becf")


def draw(found: Sequence[dict[str, Any]], over_s: float, name: str) -> None:
    """NAME.svg of the systems in results/NAME.json. `over_s`: when a run is over; a time that did not come
    is drawn there."""
    with svg_figure(PICTURES / f"{name}.svg", 9.0, 3.9, {}) as figure:
        on_time, first = figure.subplots(1, 2)
        for one, style in zip(found, _styles(found), strict=True):
            loads = [run["load"] for run in one["runs"]]
            on_time.plot(loads, [100 * run["on_time"] for run in one["runs"]], label=one["system"], **style)
            first.plot(loads, [_seconds(run["ttft_p99_s"], over_s) for run in one["runs"]], **style)
        on_time.set(ylim=(-2, 102), xlabel="prompts a second over eight models; agents beside them")
        first.set(yscale="log", xlabel=f"prompts a second; {over_s:g} s: not while the run lasted")
        on_time.set_title("tokens on time (%)", loc="left", fontsize=11)
        first.set_title("TTFT p99 (s)", loc="left", fontsize=11)
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)


def _styles(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    ours, peers = iter(_OURS), iter(_PEERS)
    return [
        {"color": next(ours), "marker": "o", "lw": 2.5}
        if one["system"].startswith("aegaeon")
        else {"color": next(peers), "marker": ".", "lw": 1.2}
        for one in found
    ]


def _seconds(found: float | None, over_s: float) -> float:
    return over_s if found is None else found
