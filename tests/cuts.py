"""Prompts cut in many ways, for both backends."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aegaeon_sidecar.backends import StepInput

# One token behind whole blocks, a few, and more than a library takes at a time.
LENGTHS = (17, 33, 40, 129, 250, 560)


def tokens_of(length: int) -> list[int]:
    """A prompt."""
    return [int(token) for token in np.random.default_rng(length).integers(6, 384, size=length)]


def some_cuts(length: int) -> Iterator[list[int]]:
    """At every block, behind the first and before the last token, inside blocks, and at random."""
    yield list(range(16, length, 16))
    yield [1]
    yield [length - 1]
    for at in (8, 15, 32, 100, 200, 384):
        if at < length:
            yield [at]
    rng = random.Random(length)
    for _ in range(4):
        yield sorted(rng.sample(range(1, length), 3))


def logits_of(backend: Any, model: str, prompt: Sequence[int], cuts: list[int], table: NDArray[np.int32]) -> Any:
    """After the last token, the prompt being computed in pieces that end at `cuts`."""
    for start, end in pairwise([0, *cuts, len(prompt)]):
        logits = backend.logits(model, [StepInput(prompt[start:end], start, table, None, prompt=True)])
    return logits[0]


def together(backend: Any, model: str, prompts: Sequence[Sequence[int]], table: NDArray[np.int32]) -> Any:
    """After the last token of each, all in one step. `table`: enough blocks for each, side by side."""
    tables = np.array_split(table, len(prompts))
    parts = [StepInput(prompt, 0, mine, None, prompt=True) for prompt, mine in zip(prompts, tables, strict=True)]
    return backend.logits(model, parts)
