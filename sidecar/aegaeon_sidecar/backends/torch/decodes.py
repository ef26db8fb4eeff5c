"""The decoder's pass over decodes of one shape: attention reads the blocks where they lie (paged.py)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.decodes import ROWS, context_size
from aegaeon_sidecar.backends.staging import HEAD, LENGTH
from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.decoder import Decoder, RankInput
from aegaeon_sidecar.backends.torch.paged import Paged
from aegaeon_sidecar.backends.torch.step_layout import Window


class PagedModel:
    """Implements FixedModel. `caches`, `devices`: of each rank; the results of all come together on the first one's.

    Made while the model's weights are there: what its matrix products give is tried with them.
    """

    def __init__(self, decoder: Decoder, caches: Seq[KvCache], devices: Seq[torch.device], max_model_len: int) -> None:
        self._decoder, self._caches, self._devices = decoder, caches, devices
        self._max_model_len = max_model_len
        self._rows = steady_rows(decoder, devices)

    @property
    def block_tokens(self) -> int:
        """See FixedModel."""
        return self._caches[0].shape.block_tokens

    @property
    def capacity(self) -> int:
        """See FixedModel."""
        return self._caches[0].capacity

    @property
    def vocab_size(self) -> int:
        """See FixedModel."""
        return self._decoder.spec.vocab_size

    @property
    def rows(self) -> tuple[int, ...]:
        """See FixedModel."""
        return self._rows

    def size(self, longest: int) -> int:
        """See FixedModel."""
        return context_size(longest, self._max_model_len)

    def prepare(self, inputs: Seq[StepInput], size: int) -> None:
        """See FixedModel: attention reads no slot behind a sequence's end."""

    def forward(self, tokens: Tensor, state: Tensor, size: int) -> Tensor:
        """See FixedModel."""
        positions = (state[:, LENGTH] - 1).clamp(min=0).long()
        ranks = zip(self._caches, self._devices, strict=True)
        return self._decoder.forward(
            [_rank_input(tokens, positions, state, size, cache, device) for cache, device in ranks]
        )


def _rank_input(
    tokens: Tensor, positions: Tensor, state: Tensor, size: int, cache: KvCache, device: torch.device
) -> RankInput:
    state = state.to(device)
    paged = Paged(cache, state[:, LENGTH].contiguous(), state[:, HEAD:].contiguous(), size)
    return RankInput(tokens.to(device), positions.to(device), paged, None)


@dataclass(frozen=True, slots=True)
class _Queries:
    """Implements Attention for a trial: what is asked is the answer, and nothing is written."""

    def attend(self, layer: int, window: Window, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See Attention."""
        return queries.reshape(len(queries), -1)


def steady_rows(decoder: Decoder, devices: Seq[torch.device]) -> tuple[int, ...]:
    """The ROWS with which the decoder's products of a row have the same bits; the largest is always one of them.

    A matrix library chooses its kernel by the number of rows, and another kernel may add up in another order; which
    numbers share one differs with the GPU and the model's sizes, so it is tried, with two to three short passes.
    """
    most = ROWS[-1]
    tokens = torch.randint(decoder.spec.vocab_size, (most,), generator=torch.Generator().manual_seed(0))

    def outputs(rows: int) -> Tensor:
        inputs = [
            RankInput(tokens[:rows].to(device), torch.arange(rows, device=device), _Queries(), None)
            for device in devices
        ]
        return decoder.forward(inputs)

    complete = outputs(most)
    return tuple(rows for rows in ROWS if rows == most or torch.equal(outputs(rows), complete[:rows]))
