"""Masks of the tokens that the constrained rows of a step may choose: computed on the host, whatever computes the step.

A mask depends on the token before, a forward pass only on its id. So masks are computed while the pass that they are
for runs, and are applied to its logits. What costs time of the host is the grammars' processes'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aegaeon_sidecar.domain.errors import CommandError, InvalidError
from aegaeon_sidecar.sampling.choices import Refused
from aegaeon_sidecar.sampling.grammar_client import GrammarClient
from aegaeon_sidecar.sampling.guide import Guide
from aegaeon_sidecar.sampling.state import SamplerState

_WORD_BITS = 32
_INFINITY = np.float32(np.inf).view(np.int32)


@dataclass(frozen=True, slots=True)
class Masks:
    """`allowed`: bool [rows, vocab_size], all true in a row without constraint; `refused`: by row, those without any
    token that could be chosen. `ceilings`, for logits on the host: float32, what each may be at most, as to that."""

    allowed: NDArray[np.bool_]
    refused: dict[int, Refused]
    ceilings: NDArray[np.float32] | None = None


class Masker:
    """Has masks computed by the grammars' processes. Guides must not be used elsewhere at the same time."""

    def __init__(self, *, on_host: bool = False) -> None:
        """`on_host`: the logits are there; then `Masks.ceilings` are made."""
        self._on_host = on_host
        self._thread = ThreadPoolExecutor(1, "masks")

    def masks(self, samplers: Seq[SamplerState | None], vocab_size: int) -> Masks | None:
        """The masks for the next token of each; None when none has a constraint."""
        guided = {row: s.guide for row, s in enumerate(samplers) if s is not None and s.guide is not None}
        if not guided:
            return None
        words = np.full((len(samplers), -(-vocab_size // _WORD_BITS)), -1, dtype=np.int32)
        refused = _fill(guided, words)
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=vocab_size).view(np.bool_)
        for row, sampler in enumerate(samplers):
            if row in refused:
                bits[row] = True
            elif row in guided and sampler is not None:
                _hold_back_stops(bits[row], sampler)
        return Masks(bits, refused, _ceilings(bits) if self._on_host else None)

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


def _fill(guided: Mapping[int, Guide], words: NDArray[np.int32]) -> dict[int, Refused]:
    """Fill the rows that have a guide; by row, why there is no mask. All processes are asked before one is awaited."""
    refused: dict[int, Refused] = {}
    rows: dict[GrammarClient, list[int]] = {}
    for row, guide in guided.items():
        try:
            rows.setdefault(guide.client(), []).append(row)
        except CommandError as error:
            refused[row] = _refused(error)
    for client, some in rows.items():
        client.ask([(guided[row].number, guided[row].behind()) for row in some])
    for client, some in rows.items():
        try:
            masks, failed = client.masks(len(some), words.shape[1])
        except CommandError as error:
            refused |= dict.fromkeys(some, _refused(error))
            continue
        words[some] = masks
        for at, why in failed.items():
            refused[some[at]] = Refused(f"the constraint cannot be followed: {' '.join(why.split())[:500]}")
    return refused


def _ceilings(allowed: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Infinity where it is allowed, else its negative: a minimum is ten times as fast as a selection."""
    signs = (allowed.view(np.int8).astype(np.int32) - 1) << 31  # the highest bit where it is not
    return (signs | _INFINITY).view(np.float32)


def _refused(error: CommandError) -> Refused:
    return Refused(str(error), ours=not isinstance(error, InvalidError))


def _hold_back_stops(allowed: NDArray[np.bool_], sampler: SamplerState) -> None:
    """Mask stop ids before min_tokens, unless the constraint allows nothing else."""
    if sampler.generated < sampler.params.min_tokens and sampler.stop_ids.size:
        stops = sampler.stop_ids[sampler.stop_ids < allowed.size]
        kept = allowed[stops]
        allowed[stops] = False
        if not allowed.any():
            allowed[stops] = kept
