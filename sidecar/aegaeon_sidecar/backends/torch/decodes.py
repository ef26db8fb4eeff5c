"""The decoder's pass over decodes of one shape: attention reads the blocks where they lie (paged.py)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.decodes import HEAD, LENGTH
from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.decoder import Decoder, Given
from aegaeon_sidecar.backends.torch.paged import Paged


class PagedModel:
    """Implements FixedModel. `caches`, `devices`: of each rank; the results of all come together on the first one's."""

    def __init__(self, decoder: Decoder, caches: Seq[KvCache], devices: Seq[torch.device]) -> None:
        self._decoder, self._caches, self._devices = decoder, caches, devices

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

    def prepare(self, inputs: Seq[StepInput]) -> None:
        """See FixedModel: attention reads no slot behind a sequence's end."""

    def forward(self, tokens: Tensor, state: Tensor) -> Tensor:
        """See FixedModel."""
        positions = (state[:, LENGTH] - 1).clamp(min=0).long()
        ranks = zip(self._caches, self._devices, strict=True)
        return self._decoder.forward([_given(tokens, positions, state, cache, device) for cache, device in ranks])


def _given(tokens: Tensor, positions: Tensor, state: Tensor, cache: KvCache, device: torch.device) -> Given:
    state = state.to(device)
    paged = Paged(cache, state[:, LENGTH].contiguous(), state[:, HEAD:].contiguous())
    return Given(tokens.to(device), positions.to(device), paged, None)
