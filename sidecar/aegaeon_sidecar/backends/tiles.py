"""Decodes of one shape under way: their tokens on the device, on their way to the host, or still to be chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aegaeon_sidecar.backends.choose import choose, masked, refused, sampled_from
from aegaeon_sidecar.backends.device import recorded
from aegaeon_sidecar.backends.draws import NO_TOKEN, numbers, on_device, pick
from aegaeon_sidecar.sampling import Chosen, Masker, Masks, Sampled, SamplerState


@dataclass(frozen=True, slots=True)
class Tile:
    """Up to ROWS sequences of a step in flight. `chosen`: their tokens, on the device, NO_TOKEN where a row is not
    finite; `tokens`: on their way to the host, there when `ready`; `samplers` by row, None where nothing is wanted;
    `on_host`: results that were computed on the host; None: they are in `tokens`."""

    chosen: Tensor
    tokens: Tensor
    ready: torch.cuda.Event | None
    samplers: tuple[SamplerState | None, ...]
    on_host: tuple[Chosen, ...] | None
    masks: Masks | None = None

    def settled(self) -> Tile:
        """Itself: it was chosen when it was launched."""
        return self

    def results(self) -> list[Chosen]:
        """Waits for the device. One entry for each sequence."""
        if self.on_host is not None:
            return list(self.on_host)
        if self.ready is not None:
            self.ready.synchronize()
        tokens: list[int] = self.tokens.tolist()
        rows = zip(self.samplers, tokens, strict=True)
        return [*refused([None if s is None else sampled_from(token) for s, token in rows], self.masks)]


class Guided:
    """A tile with constrained rows: its tokens are chosen as soon as those before them are accepted, that is when the
    next step is launched or its own results are asked for. Its logits are computed meanwhile.
    """

    def __init__(self, logits: Tensor, samplers: tuple[SamplerState | None, ...], masker: Masker) -> None:
        self._logits, self._samplers, self._masker = logits, samplers, masker
        self._tile: Tile | None = None

    def settled(self) -> Tile:
        """Choose, once; the samplers have accepted every token before. No host round trip but for logprobs and
        penalties."""
        if self._tile is None:
            drawn = all(sampler is None or on_device(sampler) for sampler in self._samplers)
            with torch.inference_mode():
                self._tile = self._chosen() if drawn else self._chosen_on_host()
            del self._logits
        return self._tile

    def results(self) -> list[Chosen]:
        """Waits for the device. One entry for each sequence."""
        return self.settled().results()

    def _chosen(self) -> Tile:
        masks = self._masker.masks(self._samplers, self._logits.shape[1])
        rules = torch.from_numpy(numbers(self._samplers, [0] * len(self._samplers)))
        if self._logits.is_cuda:
            rules = rules.pin_memory().to(self._logits.device, non_blocking=True)
        return tile_of(pick(masked(self._logits, masks), rules), self._samplers, masks=masks)

    def _chosen_on_host(self) -> Tile:
        rows = [i for i, sampler in enumerate(self._samplers) if sampler is not None]
        samplers = [sampler for sampler in self._samplers if sampler is not None]
        masks = self._masker.masks(samplers, self._logits.shape[1])
        on_host: list[Chosen] = [None] * len(self._samplers)
        for i, choice in zip(rows, choose(self._logits[rows], samplers, masks), strict=True):
            on_host[i] = choice
        tokens = torch.tensor([choice.token if isinstance(choice, Sampled) else NO_TOKEN for choice in on_host])
        return tile_of(tokens.to(self._logits.device), self._samplers, on_host=tuple(on_host))


def tile_of(
    chosen: Tensor,
    samplers: tuple[SamplerState | None, ...],
    on_host: tuple[Chosen, ...] | None = None,
    masks: Masks | None = None,
) -> Tile:
    """A tile whose tokens are on their way to the host."""
    tokens = torch.empty(len(chosen), dtype=torch.int64, pin_memory=chosen.is_cuda)
    tokens.copy_(chosen, non_blocking=True)
    return Tile(chosen, tokens, recorded(chosen.device), samplers, on_host, masks)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A step of decodes under way."""

    tiles: tuple[Tile | Guided, ...]

    @property
    def chosen(self) -> Tensor:
        """int64 [sequences], on the device, without waiting for it."""
        return torch.cat([tile.settled().chosen for tile in self.tiles])

    def results(self) -> list[Chosen]:
        """See Launched."""
        return [sampled for tile in self.tiles for sampled in tile.results()]
