"""What no policy can exceed: a bound on tokens on time from the work of a trace, whatever order it is done in.

Work that is due by a moment must be done by then. Where that exceeds what the GPUs can do, the excess must be late; it
costs fewest tokens where a request asks for most work by token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.run import Run

_GRID_S = 1.0
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests of one model: when they came, the prompts' lengths and seconds, the answers' lengths."""

    at: Floats
    prompt: Floats
    prompt_s: Floats
    answer: Floats

    @staticmethod
    def of(run: Run) -> Asked:
        """All of a run."""
        kind = run.device.kinds[run.workload.kinds[0]]
        came = run.workload.arrivals
        seconds = [run.device.prefill_s(kind, (a.input_tokens,)) for a in came]
        rows = [(a.t_s, a.input_tokens, s, a.output_tokens) for a, s in zip(came, seconds, strict=True)]
        return Asked(*np.array(rows, dtype=np.float64).T)


def most_on_time(run: Run, gpus: int, slo: Slo) -> float:
    """Bound on the share of tokens on time, of a run of one model."""
    asked = Asked.of(run)
    end = float(np.max(asked.at + slo.ttft_s + asked.answer * slo.tbt_s))
    late = max(_late(asked, run, gpus, slo, by) for by in np.arange(_GRID_S, end, _GRID_S))
    return 1.0 - late / float(asked.answer.sum())


def _late(asked: Asked, run: Run, gpus: int, slo: Slo, by: float) -> float:
    """Tokens that are late at least, of those that are due by then."""
    due = np.clip(np.floor((by - asked.at - slo.ttft_s) / slo.tbt_s) + 1.0, 0.0, asked.answer)
    asks = due > 0
    tokens, work = due[asks], (asked.prompt_s + _decode_s(asked, run, due))[asks]
    excess = work.sum() - gpus * by
    if excess <= 0.0:
        return 0.0
    order = np.argsort(tokens / work)
    done, lost = (np.concatenate(([0.0], np.cumsum(each[order]))) for each in (work, tokens))
    return float(np.interp(excess, done, lost))


def _decode_s(asked: Asked, run: Run, tokens: Floats) -> Floats:
    """Seconds of decoding so many tokens, each with its part of a step in the largest batch that memory holds."""
    kind = run.device.kinds[run.workload.kinds[0]]
    steps = np.maximum(tokens - 1.0, 0.0)
    contexts = steps * asked.prompt + steps * (steps + 1.0) / 2.0
    k = kind.latency
    return contexts * (k.b + k.a / run.device.kv_tokens(kind)) + steps * k.c
