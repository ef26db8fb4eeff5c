"""Who is ahead: this project's share of tokens on time and its TTFT p99 beside the best peer's, at each load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.report import Row

CARRIES = 0.9  # of the tokens on time: the highest load at which this holds is what a system carries


def carried(system: dict[str, Any]) -> float:
    """Prompts a second; 0 if none of the loads."""
    return max((run["load"] for run in system["runs"] if run["on_time"] >= CARRIES), default=0.0)


def rows(found: Sequence[dict[str, Any]], over_s: float) -> Iterator[Row]:
    """`over_s` stands for a time to a first token that did not come while the run lasted."""
    peers = [one for one in found if not _is_ours(one)]
    for one in filter(_is_ours, found):
        yield Row(f"{one['system']}: carries", carried(one), "prompts/s", max(map(carried, peers)), ">=")
        for at, run in enumerate(one["runs"]):
            others = [peer["runs"][at] for peer in peers]
            best = max(100 * other["on_time"] for other in others)
            soonest = min(_first_s(other, over_s) for other in others)
            what = f"{one['system']}, {run['load']:g}/s"
            yield Row(f"{what}: tokens on time / the best peer", 100 * run["on_time"], "%", best, ">=")
            yield Row(f"{what}: TTFT p99 / the best peer", _first_s(run, over_s), "s", soonest, "<=")


def _is_ours(system: dict[str, Any]) -> bool:
    return bool(system["system"].startswith("aegaeon"))


def _first_s(run: dict[str, Any], over_s: float) -> float:
    return over_s if run["ttft_p99_s"] is None else float(run["ttft_p99_s"])
