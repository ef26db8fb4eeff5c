"""Which tokens the constrained rows of a step may choose: computed on the host, whatever computes the step.

A mask depends on the token before, a forward pass only on its id. So masks are computed while the pass that they are
for runs, and are applied to its logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray

from aegaeon_sidecar.domain.errors import InvalidError
from aegaeon_sidecar.sampling.chosen import Refused
from aegaeon_sidecar.sampling.guide import check
from aegaeon_sidecar.sampling.state import SamplerState

_WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class Masks:
    """`allowed`: bool [rows, vocab_size], all true in a row without constraint; `refused`: by row, those without any
    token that could be chosen."""

    allowed: NDArray[np.bool_]
    refused: dict[int, Refused]


class Masker:
    """Computes masks with at most `threads` threads. Guides must not be used elsewhere at the same time."""

    def __init__(self, threads: int) -> None:
        self._executor = LLExecutor(threads)
        self._thread = ThreadPoolExecutor(1, "masks")

    def masks(self, samplers: Seq[SamplerState | None], vocab_size: int) -> Masks | None:
        """For the next token of each; None when none has a constraint."""
        guided = {row: s for row, s in enumerate(samplers) if s is not None and s.guide is not None}
        if not guided:
            return None
        words = np.full((len(samplers), -(-vocab_size // _WORD_BITS)), -1, dtype=np.int32)
        matchers, refused = _matchers(guided)
        if matchers:  # the library refuses an empty list
            fill_next_token_bitmask_par(self._executor, [(matcher, row) for row, matcher in matchers.items()], words)
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=vocab_size).view(np.bool_)
        for row, matcher in matchers.items():
            try:
                check(matcher)
                _hold_back_stops(bits[row], guided[row])
            except InvalidError as error:
                refused[row] = Refused(str(error))
        for row in refused:
            bits[row] = True
        return Masks(bits, refused)

    @contextmanager
    def beside(self, samplers: Seq[SamplerState], vocab_size: int) -> Iterator[Callable[[], Masks | None]]:
        """Compute masks in another thread while the body runs. They are there, or have failed, when it has ended."""
        if all(sampler.guide is None for sampler in samplers):
            yield lambda: None
            return
        made = self._thread.submit(self.masks, samplers, vocab_size)
        try:
            yield made.result
        finally:
            made.exception()


def _matchers(guided: Mapping[int, SamplerState]) -> tuple[dict[int, LLMatcher], dict[int, Refused]]:
    """By row: the matchers as they stand, and why there is none."""
    matchers: dict[int, LLMatcher] = {}
    refused: dict[int, Refused] = {}
    for row, sampler in guided.items():
        try:
            if sampler.guide is not None:
                matchers[row] = sampler.guide.matcher()
        except InvalidError as error:
            refused[row] = Refused(str(error))
    return matchers, refused


def _hold_back_stops(allowed: NDArray[np.bool_], sampler: SamplerState) -> None:
    """No stop id before min_tokens, unless the constraint allows nothing else."""
    if sampler.generated < sampler.params.min_tokens and sampler.stop_ids.size:
        stops = sampler.stop_ids[sampler.stop_ids < allowed.size]
        kept = allowed[stops]
        allowed[stops] = False
        if not allowed.any():
            allowed[stops] = kept
