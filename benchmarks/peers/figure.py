"""docs/images/peers.svg: tokens on time and times to first tokens over the load, a line for each system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

PICTURE = Path(__file__).parents[2] / "docs/images/peers.svg"
_NEVER_S = 60.0  # where a time that did not come within the run is drawn


def draw(found: Sequence[dict[str, Any]]) -> None:
    """Of the content of results/peers.json."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "aegaeon"
    from matplotlib import pyplot

    figure, (on_time, first) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for one in found:
        loads = [run["load"] for run in one["runs"]]
        style = {"marker": "o", "linewidth": 2.5 if one["system"].startswith("aegaeon") else 1.2}
        on_time.plot(loads, [100 * run["on_time"] for run in one["runs"]], label=one["system"], **style)
        times = [_NEVER_S if run["ttft_p99_s"] is None else run["ttft_p99_s"] for run in one["runs"]]
        first.plot(loads, times, **style)
    on_time.set(xlabel="prompts a second, over eight models", ylabel="tokens on time (%)", ylim=(0, 102))
    first.set(xlabel="prompts a second, over eight models", ylabel="TTFT p99 (s); 60: not in the run", yscale="log")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    figure.savefig(PICTURE, metadata={"Date": None})
