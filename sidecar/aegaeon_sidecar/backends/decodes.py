"""Decode steps of one model on a GPU: few shapes, each replayed as a CUDA graph, tokens staying on the device.

Rows are padded to one of a model's numbers of them, in all of which a row is computed the same, and contexts to a
power of two, which says how many programs attention starts and not what they add up. Nothing that a graph reads
ever moves (parameters, blocks, buffers), so it stays valid through evictions and loads; what changes between steps
(tokens, lengths, block tables) is copied into its buffers before it is replayed. What is computed is a backend's own.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.choose import choose
from aegaeon_sidecar.backends.draws import NO_TOKEN, likeliest, on_device, pick
from aegaeon_sidecar.backends.graphs import Capture, Graph
from aegaeon_sidecar.backends.passes import Buffers, Passes, Room
from aegaeon_sidecar.backends.staging import FOLLOWS, LENGTH, TOKEN, Bounds
from aegaeon_sidecar.backends.tiles import Decoded, Guided, Tile, tile_of
from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.sampling import Chosen, Masker, Sampled, SamplerState

# Sequences of a pass, padded: a pass reads all weights, and up to 64 rows take the time of that; a larger batch is
# several passes.
ROWS = (16, 64)
CAPTURED = (1, *(rows + 1 for rows in ROWS[:-1]))  # least sequences of a pass of each number of rows
LEAST_CONTEXT = 2048  # tokens: of shorter contexts all programs of attention run at once anyway


class FixedModel(Protocol):
    """The computation of a decode of one shape. Launches everything and waits for nothing."""

    @property
    def block_tokens(self) -> int: ...

    @property
    def capacity(self) -> int:
        """Blocks that there are at most."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def rows(self) -> tuple[int, ...]:
        """Sequences that a pass may have, ascending. What is computed for one is the same bits in each."""
        ...

    def size(self, longest: int) -> int:
        """The context, in tokens, of the pass for sequences of `longest` tokens at most. There are few different."""
        ...

    def prepare(self, inputs: Seq[StepInput], size: int) -> None:
        """Launch what a pass over these inputs needs beforehand, and a captured one cannot do itself."""
        ...

    def forward(self, tokens: Tensor, state: Tensor, size: int) -> Tensor:
        """The pass: float32 [rows, vocab_size]. `tokens`: int64 [rows]; `state`: int32 [rows, HEAD + blocks of `size`
        tokens], on the device; a row of LENGTH 0 stands for no sequence, writes nothing, and begins with a block that
        others have."""
        ...


def context_size(longest: int, most: int) -> int:
    """The power of two from LEAST_CONTEXT on that holds `longest` tokens, but no more than `most`."""
    return min(max(LEAST_CONTEXT, 1 << (longest - 1).bit_length()), most)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The shape of a pass: its rows, and the tokens of its longest context."""

    rows: int
    size: int


class Decodes:
    """The decode steps of one model. Not thread-safe, and neither are those of models that share `passes`."""

    def __init__(self, model: FixedModel, max_model_len: int, passes: Passes, masker: Masker) -> None:
        self._model = model
        self._masker = masker
        self._passes = passes
        self._graphs: dict[_Shape, Graph] = {}
        self._most = model.rows[-1]
        self._bounds = Bounds(model.block_tokens, model.capacity, model.vocab_size)
        passes.fit(Room(self._most, -(-max_model_len // model.block_tokens), model.vocab_size))

    def launch(self, inputs: Seq[StepInput], after: Launched | None) -> Decoded:
        """One step, in tiles; `follows` names tokens of `after`, which are never waited for."""
        follows = [part.follows for part in inputs if part.follows is not None]
        if follows:
            self._bring(after, max(follows))
        return Decoded(tuple(map(self._tile, self._tiles(inputs))))

    def _bring(self, after: Launched | None, last: int) -> None:
        """The tokens of the step before, up to that of row `last` at least: behind them lie those of other models."""
        if not isinstance(after, Decoded):
            raise BackendError("an input follows a step that was not of decodes")
        before = after.chosen
        if last >= len(before):
            raise BackendError(f"an input follows row {last} of a step of {len(before)}")
        self._buffers.before[: len(before)].copy_(before)

    def logits(self, inputs: Seq[StepInput]) -> Tensor:
        """A step without sampling: float32 [inputs, vocab_size]."""
        return torch.cat([self._forwarded(tile, drawn=False).clone() for tile in self._tiles(inputs)])

    @property
    def _buffers(self) -> Buffers:
        """The current buffers: a model that needs larger ones replaces them."""
        return self._passes.buffers

    def _tiles(self, inputs: Seq[StepInput]) -> list[Seq[StepInput]]:
        return [inputs[first : first + self._most] for first in range(0, len(inputs), self._most)]

    def _tile(self, inputs: Seq[StepInput]) -> Tile | Guided:
        samplers = tuple(part.sampler for part in inputs)
        if any(sampler is not None and sampler.guide is not None for sampler in samplers):
            return Guided(self._forwarded(inputs, drawn=False).clone(), samplers, self._masker)
        drawn = _are_drawn(samplers)
        logits = self._forwarded(inputs, drawn)
        on_host = self._choose(logits, samplers, drawn)
        return tile_of(self._buffers.chosen[: len(inputs)].clone(), samplers, on_host)

    def _forwarded(self, inputs: Seq[StepInput], drawn: bool) -> Tensor:
        """float32 [inputs, vocab_size]; the next one overwrites it. `drawn`: the rules of draws are sent along."""
        rows = next(rows for rows in self._model.rows if rows >= len(inputs))
        shape = _Shape(rows, self._model.size(max(part.position for part in inputs) + 1))
        self._buffers.staging.send(inputs, rows, self._blocks(shape), self._bounds, drawn)
        self._model.prepare(inputs, shape.size)
        self._run(shape)
        return self._logits(shape)[: len(inputs)]

    def _blocks(self, shape: _Shape) -> int:
        return -(-shape.size // self._model.block_tokens)

    def _state(self, shape: _Shape) -> Tensor:
        return self._buffers.staging.state(shape.rows, self._blocks(shape))

    def _logits(self, shape: _Shape) -> Tensor:
        return self._buffers.logits(shape.rows, self._bounds.vocab_size)

    def _run(self, shape: _Shape) -> None:
        graphs = self._passes.graphs
        if graphs is None:
            self._forward(shape)
        else:
            graphs.replay(self._graphs.setdefault(shape, Graph()), partial(self._captured, shape))

    def _captured(self, shape: _Shape, capture: Capture) -> Callable[[], None]:
        """The step, captured while it is one of no sequences: it writes to no block."""
        state = self._state(shape)
        kept = state.clone()
        state[:, LENGTH] = 0
        replay = capture(partial(self._forward, shape))
        state.copy_(kept)
        return replay

    def _forward(self, shape: _Shape) -> None:
        """All rows, padded ones as well; ends with the likeliest tokens in `chosen`."""
        state = self._state(shape)
        own, follows = state[:, TOKEN], state[:, FOLLOWS]
        before = self._buffers.before[follows.clamp(min=0).long()]
        before = before.clamp(min=0)  # NO_TOKEN: that row is thrown away anyhow
        tokens = torch.where(follows < 0, own.long(), before)
        logits, chosen = self._logits(shape), self._buffers.chosen[: shape.rows]
        logits.copy_(self._model.forward(tokens, state, shape.size))
        chosen.copy_(likeliest(logits))

    def _choose(
        self, logits: Tensor, samplers: tuple[SamplerState | None, ...], drawn: bool
    ) -> tuple[Chosen, ...] | None:
        """Choices other than greedy ones: draws stay on the device, and return None; penalties and logprobs are
        computed on the host at once."""
        if all(sampler is None or sampler.plain for sampler in samplers):
            return None
        if drawn:
            likeliest_ones = self._buffers.chosen[: len(samplers)]
            likeliest_ones.copy_(pick(logits, self._buffers.staging.rules(len(samplers)), best=likeliest_ones))
            return None
        rows = [i for i, sampler in enumerate(samplers) if sampler is not None]
        picked = choose(logits[rows], [s for s in samplers if s is not None])
        chosen: list[Chosen] = [None] * len(samplers)
        for i, choice in zip(rows, picked, strict=True):
            chosen[i] = choice
            self._buffers.chosen[i] = choice.token if isinstance(choice, Sampled) else NO_TOKEN
        return tuple(chosen)


def _are_drawn(samplers: Seq[SamplerState | None]) -> bool:
    """True when `pick` chooses for all rows: at least one is a draw, and none depends on the tokens so far."""
    sampling = [sampler for sampler in samplers if sampler is not None]
    return all(map(on_device, sampling)) and not all(sampler.plain for sampler in sampling)
