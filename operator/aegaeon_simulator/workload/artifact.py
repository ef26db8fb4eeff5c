"""Changes that the simulator of the paper's artifact makes to a trace before running it, read from its source.

Lengths are drawn anew from the trace's own pairs, model by model; kinds follow the order of first appearance.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from aegaeon_simulator.workload.kinds import paper_kind
from aegaeon_simulator.workload.model import Arrival, Workload

_WINDOW_S = 120.0  # later arrivals are not read
_SLACK_TOKENS = 32
_LEAST_DIVISOR = 16_384  # over-long requests shrink at least as if they were so long


def resampled(workload: Workload, longest: Mapping[str, int], seed: int) -> Workload:
    """The trace as the artifact runs it: `longest` are the tokens that a kind takes. Times are whole milliseconds."""
    arrivals = [a for a in workload.arrivals if a.t_s < _WINDOW_S]
    order = list(dict.fromkeys(a.model for a in arrivals))
    draw = np.random.default_rng(seed).choice(np.arange(len(arrivals)), size=len(arrivals))
    kinds = list(workload.kinds)
    taken: list[Arrival] = []
    for place, model in enumerate(order):
        kinds[model] = paper_kind(place)
        for arrival in (a for a in arrivals if a.model == model):
            pair = arrivals[int(draw[len(taken)])]
            lengths = _shrunk(pair.input_tokens, pair.output_tokens, longest[kinds[model]])
            taken.append(Arrival(_milliseconds(arrival.t_s) / 1000, model, *lengths))
    return Workload(tuple(kinds), tuple(sorted(taken, key=lambda a: a.t_s)), workload.given_names)


def _milliseconds(t_s: float) -> int:
    """Read as minutes and seconds, and cut: what the artifact's arithmetic makes of a time, rounding included."""
    minutes = int(t_s // 60)
    return int((minutes * 60 + round(t_s - minutes * 60, 3)) * 1000)


def _shrunk(input_tokens: int, output_tokens: int, longest: int) -> tuple[int, int]:
    total = input_tokens + output_tokens
    if total <= longest:
        return input_tokens, output_tokens
    scale = longest / max(total + _SLACK_TOKENS, _LEAST_DIVISOR)
    return int(input_tokens * scale), max(1, int(output_tokens * scale))
