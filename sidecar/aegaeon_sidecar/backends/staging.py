"""Inputs of decodes on their way to a device: written to page-locked memory, copied from there and not waited for.

What a step of few sequences or short ones needs is the front of the same buffers, in fewer rows and narrower ones: a
graph that reads them finds them at the same addresses.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.device import recorded
from aegaeon_sidecar.backends.draws import COLUMNS, numbers
from aegaeon_sidecar.domain.errors import BackendError

# Columns of a row before its block table. FOLLOWS: the row of the step before that the token comes from; -1: TOKEN.
TOKEN, FOLLOWS, LENGTH = range(3)
HEAD = 3
_STAGES = 3  # host buffers: one being written, one being copied, one to spare


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one model's inputs. `block_tokens`: tokens of a block; `capacity`: number of blocks; `vocab_size`: the
    limit of token ids."""

    block_tokens: int
    capacity: int
    vocab_size: int


class Staging:
    """Buffers of up to `rows` rows with up to `blocks` blocks each, of whichever models. Not thread-safe."""

    def __init__(self, rows: int, blocks: int, device: torch.device) -> None:
        self._device = device
        size, pinned = rows * (HEAD + blocks), device.type == "cuda"
        self._stages = [torch.zeros(size, dtype=torch.int32, pin_memory=pinned) for _ in range(_STAGES)]
        self._drawn = [torch.zeros(rows, COLUMNS, dtype=torch.float64, pin_memory=pinned) for _ in range(_STAGES)]
        self._copied: list[torch.cuda.Event | None] = [None] * _STAGES
        self._turn = 0
        self._state = torch.zeros(size, dtype=torch.int32, device=device)
        self._rules = torch.zeros(rows, COLUMNS, dtype=torch.float64, device=device)

    def state(self, rows: int, blocks: int) -> Tensor:
        """int32 [rows, HEAD + blocks], on the device."""
        return self._state[: rows * (HEAD + blocks)].view(rows, HEAD + blocks)

    def rules(self, rows: int) -> Tensor:
        """float64 [rows, COLUMNS], on the device."""
        return self._rules[:rows]

    def send(self, inputs: Seq[StepInput], rows: int, blocks: int, bounds: Bounds, drawn: bool) -> None:
        """Tokens, lengths and block tables into the front of `state`; `drawn`: the rules of draws as well. A row
        without an input has length 0 and the first input's first block. Raises BackendError for a bad input."""
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        count = rows * (HEAD + blocks)
        stage, staged = self._stages[self._turn][:count], self._drawn[self._turn][:rows]
        _write(stage.numpy().view(_row_type(blocks)), inputs, blocks, bounds)
        self._state[:count].copy_(stage, non_blocking=True)
        if drawn:
            ahead = [0 if part.follows is None else 1 for part in inputs]
            rules = staged.numpy()
            rules[: len(inputs)], rules[len(inputs) :] = numbers([part.sampler for part in inputs], ahead), 0.0
            self._rules[:rows].copy_(staged, non_blocking=True)
        self._copied[self._turn] = recorded(self._device)
        self._turn = (self._turn + 1) % _STAGES


def _write(rows: NDArray[np.void], inputs: Seq[StepInput], width: int, bounds: Bounds) -> None:
    rows["token"], rows["follows"], rows["length"] = 0, -1, 0
    size, capacity = bounds.block_tokens, bounds.capacity
    for row, part in zip(rows, inputs, strict=False):
        count = part.position // size + 1
        blocks = np.asarray(part.blocks[:count])
        if len(blocks) < count or count > width or blocks.min() < 0 or blocks.max() >= capacity:
            raise BackendError(f"a decode at position {part.position} needs {count} blocks below {capacity}")
        row["token"] = _token(part, bounds.vocab_size)
        row["follows"] = -1 if part.follows is None else part.follows
        row["length"] = part.position + 1
        row["blocks"][:count] = blocks
    rows["blocks"][len(inputs) :, 0] = rows["blocks"][0, 0]


def _token(part: StepInput, vocab_size: int) -> int:
    """Checked here: an id outside the vocabulary would be an assertion on the device, which ends its context."""
    if part.follows is not None:
        return 0
    if not 0 <= part.tokens[0] < vocab_size:
        raise BackendError(f"a decode needs a token from 0 to {vocab_size - 1}")
    return part.tokens[0]


@lru_cache
def _row_type(blocks: int) -> np.dtype[np.void]:
    """A row of a step's inputs on the host, in the order of the device's columns."""
    return np.dtype([("token", np.int32), ("follows", np.int32), ("length", np.int32), ("blocks", np.int32, (blocks,))])
