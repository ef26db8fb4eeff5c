"""Draws as a GPU makes them, by Triton's interpreter, held against those of a CPU, which sorts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aegaeon_proto.engine.sampling import SamplingParams
from aegaeon_sidecar.backends import fused_draws
from aegaeon_sidecar.backends.draws import NO_TOKEN, likeliest, numbers, pick
from aegaeon_sidecar.sampling import SamplerState


def rules_of(samplers: list[SamplerState]) -> torch.Tensor:
    return torch.from_numpy(numbers(samplers, [0] * len(samplers)))


def drawn(logits: torch.Tensor, rules: torch.Tensor) -> list[int]:
    tokens: list[int] = fused_draws.draw(logits, rules, likeliest(logits)).tolist()
    return tokens


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_draws, "TILE", 256)  # so that rows have several


def random_samplers(random: np.random.Generator, count: int) -> list[SamplerState]:
    """Samplers of which some are greedy, and some keep few tokens, one or all."""
    return [
        SamplerState(
            SamplingParams(
                temperature=float(random.choice([0.0, 0.3, 1.0, 1.7])),
                top_k=int(random.choice([0, 1, 5, 200, 5000])),
                top_p=float(random.choice([1.0, 0.95, 0.3, 1e-6])),
                min_p=float(random.choice([0.0, 0.05])),
                seed=int(random.integers(2**60)),
            )
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize(("coarse", "seed"), [(False, 0), (True, 1)])
def test_draws_without_sorting_are_those_with_it(coarse: bool, seed: int) -> None:
    """`coarse`: many entries are as likely as the last one that a filter keeps."""
    random = np.random.default_rng(seed)
    samplers = random_samplers(random, 10)
    logits = torch.from_numpy(random.normal(scale=3.0, size=(10, 500)).astype(np.float32))
    logits[3, 10:] = -torch.inf
    if coarse:
        logits = logits.round()
    rules = rules_of(samplers)
    assert drawn(logits, rules) == pick(logits, rules).tolist()


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.9), (40, 0.8), (3, 1.0)])
def test_what_is_kept_is_what_sorting_keeps(top_k: int, top_p: float) -> None:
    """Every draw from 0 to 1 in turn: all tokens that can be drawn, as often as they should be."""
    logits = torch.from_numpy(np.random.default_rng(5).normal(scale=2.0, size=(1, 300)).astype(np.float32)).round(
        decimals=1
    )
    rules = rules_of([SamplerState(SamplingParams(temperature=0.8, top_k=top_k, top_p=top_p, seed=1))]).repeat(8, 1)
    rules[:, -1] = torch.linspace(0, 1 - 1e-9, 8, dtype=torch.float64)
    expanded = logits.expand(8, -1)
    assert drawn(expanded, rules) == pick(expanded.contiguous(), rules).tolist()


def test_rows_that_are_not_finite_and_greedy_ones_keep_what_they_have() -> None:
    logits = torch.zeros(3, 300)
    logits[0, 7], logits[1, 5] = 1.0, torch.nan
    logits[2] = -torch.inf
    rules = rules_of([SamplerState(), *(SamplerState(SamplingParams(temperature=1.0, seed=row)) for row in (1, 2))])
    assert drawn(logits, rules) == [7, NO_TOKEN, NO_TOKEN]


def test_a_row_draws_the_same_alone_and_in_company() -> None:
    logits = torch.from_numpy(np.random.default_rng(9).normal(size=(3, 300)).astype(np.float32))
    rules = rules_of([SamplerState(SamplingParams(temperature=1.0, top_p=0.7, seed=row)) for row in range(3)])
    alone = [drawn(logits[row : row + 1], rules[row : row + 1])[0] for row in range(3)]
    assert drawn(logits, rules) == alone
