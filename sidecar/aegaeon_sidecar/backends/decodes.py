"""Decode steps of one model on a GPU: fixed shapes, replayed as a CUDA graph, tokens staying on the device.

Rows are padded to one tile, so that a sequence meets the same kernels alone and in company. Nothing that a graph reads
ever moves (parameters, blocks, buffers), so it stays valid through evictions and loads; what changes between steps
(tokens, lengths, block tables) is copied into its buffers before it is replayed. What is computed is a backend's own.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.choose import choose
from aegaeon_sidecar.backends.device import recorded
from aegaeon_sidecar.backends.draws import COLUMNS, FOLLOWED, NO_TOKEN, likeliest, numbers, on_device, pick
from aegaeon_sidecar.backends.tiles import Decoded, Guided, Tile, tile_of
from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.sampling import Chosen, Masker, Sampled, SamplerState

ROWS = 16  # a step's sequences, padded; a larger batch is several steps
# Columns of a row before its block table. FOLLOWS: the row of the step before that the token comes from; -1: TOKEN.
TOKEN, FOLLOWS, LENGTH = range(3)
HEAD = 3
_STAGES = 3  # host buffers: one being written, one being copied, one to spare

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Given a pass over tensors that never move: what does the same to the same tensors, as often as it is called."""


class FixedModel(Protocol):
    """What is computed in a decode of ROWS rows. Everything is launched, nothing waited for."""

    @property
    def block_tokens(self) -> int: ...

    @property
    def capacity(self) -> int:
        """Blocks that there are at most."""
        ...

    @property
    def vocab_size(self) -> int: ...

    def prepare(self, inputs: Seq[StepInput]) -> None:
        """Launch what a pass over these inputs needs beforehand, and a captured one cannot do itself."""
        ...

    def forward(self, tokens: Tensor, state: Tensor) -> Tensor:
        """The pass: float32 [ROWS, vocab_size]. `tokens`: int64 [ROWS]; `state`: int32 [ROWS, HEAD + blocks], on the
        device; a row of LENGTH 0 stands for no sequence, writes nothing, and begins with a block that others have."""
        ...


def cuda_graphs(device: torch.device) -> Capture:
    """Captures passes as CUDA graphs, all of which share one pool of memory."""
    pool = torch.cuda.graph_pool_handle()

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            run()  # compiles kernels
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # the lanes' threads map and copy meanwhile
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            run()
        return graph.replay

    return capture


class Decodes:
    """The decode steps of one model. Not thread-safe.

    `device`: where tokens are chosen; `capture`: None: steps run eagerly.
    """

    def __init__(
        self, model: FixedModel, max_model_len: int, device: torch.device, masker: Masker, capture: Capture | None
    ) -> None:
        self._model = model
        self._masker = masker
        self._device = device
        self._capture = capture
        self._replay: Callable[[], None] | None = None
        blocks = -(-max_model_len // model.block_tokens)
        pinned = device.type == "cuda"
        self._stages = [torch.zeros(ROWS, HEAD + blocks, dtype=torch.int32, pin_memory=pinned) for _ in range(_STAGES)]
        self._drawn = [torch.zeros(ROWS, COLUMNS, dtype=torch.float64, pin_memory=pinned) for _ in range(_STAGES)]
        self._copied: list[torch.cuda.Event | None] = [None] * _STAGES
        self._turn = 0
        self._state = torch.zeros(ROWS, HEAD + blocks, dtype=torch.int32, device=device)
        self._rules = torch.zeros(ROWS, COLUMNS, dtype=torch.float64, device=device)
        self._before = torch.zeros(FOLLOWED, dtype=torch.int64, device=device)
        self._chosen = torch.zeros(ROWS, dtype=torch.int64, device=device)
        self._logits = torch.zeros(ROWS, model.vocab_size, device=device)

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
        self._model.prepare(inputs)
        self._run()
        return self._logits

    def _send(self, inputs: Seq[StepInput], drawn: bool) -> None:
        """Tokens, lengths, block tables and rules of draws to the device, in copies that are not waited for."""
        stage, staged, copied = self._stages[self._turn], self._drawn[self._turn], self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        width = stage.shape[1] - HEAD
        rows = stage.numpy().view(_row_type(width))[:, 0]
        rows["token"], rows["follows"], rows["length"] = 0, -1, 0
        size, capacity = self._model.block_tokens, self._model.capacity
        for row, part in zip(rows, inputs, strict=False):
            count = part.position // size + 1
            blocks = np.asarray(part.blocks[:count])
            if len(blocks) < count or count > width or blocks.min() < 0 or blocks.max() >= capacity:
                raise BackendError(f"a decode at position {part.position} needs {count} blocks below {capacity}")
            row["token"] = self._token(part)
            row["follows"] = -1 if part.follows is None else part.follows
            row["length"] = part.position + 1
            row["blocks"][:count] = blocks
        rows["blocks"][len(inputs) :, 0] = rows["blocks"][0, 0]
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
        if not 0 <= part.tokens[0] < self._model.vocab_size:
            raise BackendError(f"a decode needs a token from 0 to {self._model.vocab_size - 1}")
        return part.tokens[0]

    def _run(self) -> None:
        if self._capture is None:
            self._forward()
            return
        if self._replay is None:
            self._replay = self._captured(self._capture)
        self._replay()

    def _captured(self, capture: Capture) -> Callable[[], None]:
        """The step, captured while it is one of no sequences: it writes to no block."""
        state = self._state.clone()
        self._state[:, LENGTH] = 0
        replay = capture(self._forward)
        self._state.copy_(state)
        return replay

    def _forward(self) -> None:
        """All rows, padded ones as well; ends with the likeliest tokens in `_chosen`."""
        given, follows = self._state[:, TOKEN], self._state[:, FOLLOWS]
        before = self._before[follows.clamp(min=0).long()].clamp(min=0)  # NO_TOKEN: that row is thrown away anyhow
        tokens = torch.where(follows >= 0, before, given.long())
        self._logits.copy_(self._model.forward(tokens, self._state))
        self._chosen.copy_(likeliest(self._logits))

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
