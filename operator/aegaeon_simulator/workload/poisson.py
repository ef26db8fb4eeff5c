"""Poisson traces as in the paper's evaluation (section 7.1): one process per model, lengths drawn from pairs.

Every model has a random stream of its own, so a trace of fewer models or a shorter one is a part of the larger one.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from math import inf
from pathlib import Path

import numpy as np

from aegaeon_simulator.workload.errors import TraceError, WorkloadError
from aegaeon_simulator.workload.kinds import paper_kind
from aegaeon_simulator.workload.model import Arrival, Workload, in_order
from aegaeon_simulator.workload.trace import open_text


@dataclass(frozen=True, slots=True)
class Lengths:
    """Pairs of (input, output) tokens that requests are drawn from."""

    pairs: tuple[tuple[int, int], ...]

    @staticmethod
    def read(path: Path) -> Lengths:
        """Read a CSV file (also .gz) with the columns input_len and output_len. Raises TraceError."""
        try:
            with open_text(path) as file:
                rows = [(int(row["input_len"]), int(row["output_len"])) for row in csv.DictReader(file)]
        except (OSError, KeyError, ValueError) as error:
            raise TraceError(path, None, f"not a CSV file of input_len and output_len ({error})") from error
        if not rows:
            raise TraceError(path, None, "holds no pair of lengths")
        return Lengths(tuple(rows))

    @staticmethod
    def packaged() -> Lengths:
        """The lengths of ShareGPT conversations, shipped with the simulator."""
        with resources.as_file(resources.files("aegaeon_simulator") / "data" / "sharegpt_pairs.csv.gz") as path:
            return Lengths.read(path)


def poisson(
    lengths: Lengths, *, models: int, rate: float, duration_s: float, seed: int, kind: Callable[[int], str] = paper_kind
) -> Workload:
    """`models` independent Poisson processes of `rate` requests per second each, for `duration_s` seconds."""
    if models < 1 or not 0 < rate < inf or not 0 < duration_s < inf:
        raise WorkloadError("models, rate and duration must be greater than 0 and finite")
    arrivals = [a for m in range(models) for a in _one_model(lengths, m, rate, duration_s, seed)]
    return in_order((kind(m) for m in range(models)), arrivals)


def _one_model(lengths: Lengths, model: int, rate: float, duration_s: float, seed: int) -> list[Arrival]:
    random = np.random.default_rng([seed, model])
    arrivals: list[Arrival] = []
    t_s = float(random.exponential(1 / rate))
    while t_s < duration_s:
        input_tokens, output_tokens = lengths.pairs[int(random.integers(len(lengths.pairs)))]
        arrivals.append(Arrival(t_s, model, input_tokens, output_tokens))
        t_s += float(random.exponential(1 / rate))
    return arrivals
