"""Decode steps of one model on a GPU: fixed shapes, replayed as a CUDA graph, tokens staying on the device.

Rows are padded to one tile, so that a sequence meets the same kernels alone and in company. Nothing that a graph reads
ever moves (parameters, blocks, buffers), so it stays valid through evictions and loads; what changes between steps
(tokens, lengths, block tables) is copied into its buffers before it is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.choose import choose, masked, refused, sampled_from
from aegaeon_sidecar.backends.device import recorded
from aegaeon_sidecar.backends.draws import COLUMNS, FOLLOWED, NO_TOKEN, likeliest, numbers, on_device, pick
from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.decoder import Decoder, Given
from aegaeon_sidecar.backends.torch.paged import Paged
from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.sampling import Chosen, Masker, Masks, Sampled, SamplerState

ROWS = 16  # a step's sequences, padded; a larger batch is several steps
# Columns of a row before its block table. FOLLOWS: the row of the step before that the token comes from; -1: TOKEN.
TOKEN, FOLLOWS, LENGTH = range(3)
_HEAD = 3
_STAGES = 3  # host buffers: one being written, one being copied, one to spare


@dataclass(frozen=True, slots=True)
class Tile:
    """At most ROWS sequences of a step under way. `chosen`: their tokens, on the device, NO_TOKEN where a row is not
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
            here = all(sampler is None or on_device(sampler) for sampler in self._samplers)
            with torch.inference_mode():
                self._tile = self._chosen() if here else self._chosen_on_host()
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
        wanted = [i for i, sampler in enumerate(self._samplers) if sampler is not None]
        samplers = [sampler for sampler in self._samplers if sampler is not None]
        masks = self._masker.masks(samplers, self._logits.shape[1])
        on_host: list[Chosen] = [None] * len(self._samplers)
        for i, one in zip(wanted, choose(self._logits[wanted], samplers, masks), strict=True):
            on_host[i] = one
        tokens = torch.tensor([one.token if isinstance(one, Sampled) else NO_TOKEN for one in on_host])
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


class Decodes:
    """The decode steps of one model. Not thread-safe.

    `caches`, `devices`: of each rank. Tokens are chosen on the first one's, where the results of all come together. One
    rank's steps are captured on a GPU; those of several, which span devices, run eagerly, as on a CPU.
    """

    def __init__(
        self,
        decoder: Decoder,
        caches: Seq[KvCache],
        max_model_len: int,
        devices: Seq[torch.device],
        masker: Masker,
    ) -> None:
        self._decoder = decoder
        self._masker = masker
        self._caches = caches
        self._devices = devices
        self._shape, self._capacity = caches[0].shape, caches[0].capacity
        device = self._device = devices[0]
        self._capture = device.type == "cuda" and len(devices) == 1
        self._graph: torch.cuda.CUDAGraph | None = None
        blocks = -(-max_model_len // self._shape.block_tokens)
        pinned = device.type == "cuda"
        self._stages = [torch.zeros(ROWS, _HEAD + blocks, dtype=torch.int32, pin_memory=pinned) for _ in range(_STAGES)]
        self._drawn = [torch.zeros(ROWS, COLUMNS, dtype=torch.float64, pin_memory=pinned) for _ in range(_STAGES)]
        self._copied: list[torch.cuda.Event | None] = [None] * _STAGES
        self._turn = 0
        self._state = torch.zeros(ROWS, _HEAD + blocks, dtype=torch.int32, device=device)
        self._rules = torch.zeros(ROWS, COLUMNS, dtype=torch.float64, device=device)
        self._before = torch.zeros(FOLLOWED, dtype=torch.int64, device=device)
        self._chosen = torch.zeros(ROWS, dtype=torch.int64, device=device)
        self._logits = torch.zeros(ROWS, decoder.spec.vocab_size, device=device)

    def launch(self, inputs: Seq[StepInput], after: Launched | None) -> Decoded:
        """One step, in tiles; `follows` names tokens of `after`, which are never waited for."""
        if any(part.follows is not None for part in inputs):
            if not isinstance(after, Decoded):
                raise BackendError("an input follows a step that was not of decodes")
            before = after.chosen
            self._before[: len(before)].copy_(before)
        return Decoded(tuple(self._tile(inputs[first : first + ROWS]) for first in range(0, len(inputs), ROWS)))

    def logits(self, inputs: Seq[StepInput]) -> Tensor:
        """A step without sampling: float32 [inputs, vocab_size]."""
        tiles = (inputs[first : first + ROWS] for first in range(0, len(inputs), ROWS))
        return torch.cat([self._forwarded(tile, drawn=False)[: len(tile)].clone() for tile in tiles])

    def _tile(self, inputs: Seq[StepInput]) -> Tile | Guided:
        samplers = tuple(part.sampler for part in inputs)
        if any(sampler is not None and sampler.guide is not None for sampler in samplers):
            logits = self._forwarded(inputs, drawn=False)[: len(inputs)].clone()
            return Guided(logits, samplers, self._masker)
        drawn = _are_drawn(samplers)
        self._forwarded(inputs, drawn)
        on_host = self._choose(samplers, drawn)
        return tile_of(self._chosen[: len(inputs)].clone(), samplers, on_host)

    def _forwarded(self, inputs: Seq[StepInput], drawn: bool) -> Tensor:
        """float32 [ROWS, vocab_size]; the next one overwrites it. `drawn`: the rules of draws are sent along."""
        self._send(inputs, drawn)
        self._run()
        return self._logits

    def _send(self, inputs: Seq[StepInput], drawn: bool) -> None:
        """Tokens, lengths, block tables and rules of draws to the device, in copies that are not waited for."""
        stage, staged, copied = self._stages[self._turn], self._drawn[self._turn], self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        width = stage.shape[1] - _HEAD
        rows = stage.numpy().view(_row_type(width))[:, 0]
        rows["token"], rows["follows"], rows["length"] = 0, -1, 0
        size, capacity = self._shape.block_tokens, self._capacity
        for row, part in zip(rows, inputs, strict=False):
            count = part.position // size + 1
            blocks = np.asarray(part.blocks[:count])
            if len(blocks) < count or count > width or blocks.min() < 0 or blocks.max() >= capacity:
                raise BackendError(f"a decode at position {part.position} needs {count} blocks below {capacity}")
            row["token"] = self._token(part)
            row["follows"] = -1 if part.follows is None else part.follows
            row["length"] = part.position + 1
            row["blocks"][:count] = blocks
        self._state.copy_(stage, non_blocking=True)
        if drawn:
            ahead = [0 if part.follows is None else 1 for part in inputs]
            rules = staged.numpy()
            rules[: len(inputs)], rules[len(inputs) :] = numbers([part.sampler for part in inputs], ahead), 0.0
            self._rules.copy_(staged, non_blocking=True)
        self._copied[self._turn] = recorded(self._device)
        self._turn = (self._turn + 1) % _STAGES

    def _token(self, part: StepInput) -> int:
        """Checked here: an id outside the vocabulary would be an assertion on the device, which ends its context."""
        if part.follows is not None:
            return 0
        if not 0 <= part.tokens[0] < self._decoder.spec.vocab_size:
            raise BackendError(f"a decode needs a token from 0 to {self._decoder.spec.vocab_size - 1}")
        return part.tokens[0]

    def _run(self) -> None:
        if not self._capture:
            self._forward()
            return
        if self._graph is None:
            self._graph = self._captured()
        self._graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The step as a graph, after one on no sequences: it compiles kernels and writes to no block."""
        state = self._state.clone()
        self._state[:, LENGTH] = 0
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            self._forward()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the lanes' threads map and copy meanwhile
            self._forward()
        self._state.copy_(state)
        return graph

    def _forward(self) -> None:
        """All rows, padded ones as well; ends with the likeliest tokens in `_chosen`."""
        given, follows, lengths = (self._state[:, column] for column in (TOKEN, FOLLOWS, LENGTH))
        before = self._before[follows.clamp(min=0).long()].clamp(min=0)  # NO_TOKEN: that row is thrown away anyhow
        tokens = torch.where(follows >= 0, before, given.long())
        positions = (lengths - 1).clamp(min=0).long()
        ranks = zip(self._caches, self._devices, strict=True)
        steps = [self._given(tokens.to(device), positions.to(device), cache) for cache, device in ranks]
        self._logits.copy_(self._decoder.forward(steps))
        self._chosen.copy_(likeliest(self._logits))

    def _given(self, tokens: Tensor, positions: Tensor, cache: KvCache) -> Given:
        state = self._state.to(tokens.device)
        return Given(
            tokens, positions, Paged(cache, state[:, LENGTH].contiguous(), state[:, _HEAD:].contiguous()), None
        )

    def _choose(self, samplers: tuple[SamplerState | None, ...], drawn: bool) -> tuple[Chosen, ...] | None:
        """What greedy does not cover: draws stay on the device; None. Penalties and logprobs: on the host, at once."""
        wanted = [i for i, sampler in enumerate(samplers) if sampler is not None]
        if all(sampler is None or sampler.plain for sampler in samplers):
            return None
        if drawn:
            self._chosen.copy_(pick(self._logits, self._rules))
            return None
        picked = choose(self._logits[wanted], [s for s in samplers if s is not None])
        chosen: list[Chosen] = [None] * len(samplers)
        for i, one in zip(wanted, picked, strict=True):
            chosen[i] = one
            self._chosen[i] = one.token if isinstance(one, Sampled) else NO_TOKEN
        return tuple(chosen)


def _row_type(blocks: int) -> np.dtype[np.void]:
    """A row of a step's inputs on the host, in the order of the device's columns."""
    return np.dtype([("token", np.int32), ("follows", np.int32), ("length", np.int32), ("blocks", np.int32, (blocks,))])


def _are_drawn(samplers: Seq[SamplerState | None]) -> bool:
    """Whether all rows are chosen by `pick`: one at least by a draw, none by what depends on the tokens so far."""
    given = [sampler for sampler in samplers if sampler is not None]
    return all(map(on_device, given)) and not all(sampler.plain for sampler in given)
