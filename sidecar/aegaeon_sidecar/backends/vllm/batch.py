"""The sequences of a step as tensors: tokens one behind the other, where each is, and where its KV lies.

A decode step is mostly the one before it, one token further: its tensors are changed in place, as arrays that share
their memory, which takes a fraction of the time of making them anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegaeon_native import advance
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.domain.errors import BackendError

Blocks = NDArray[np.int32]
AHEAD = 64  # tokens: metadata that may be kept is made for sequences that are so much longer, and is good until then
_SPARE = 4  # blocks that a decode's table has room for beyond those of its longest sequence


class Batch:
    """`tokens` int32 and `positions`, `slots` int64 [tokens]; of each sequence: `starts` in these, and the end, int32
    [sequences + 1], `ends`: its tokens afterwards, and `table`: its blocks, int32 [sequences, most blocks].
    `metadata`: all of these as vLLM's builders take them. `context`: what was built of it, good for `left` more steps;
    None: nothing. `moved`: how often it has moved on."""

    def __init__(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int64],
        starts: NDArray[np.int32],
        ends: NDArray[np.int32],
        table: Blocks,
        block_tokens: int,
        owners: list[Blocks],
    ) -> None:
        """`owners`: the sequences' own block tables, which are replaced when they change, never changed."""
        self._block_tokens, self._owners = block_tokens, owners
        lengths = np.diff(starts)
        rows = np.repeat(np.arange(len(ends)), lengths)
        self._places = np.empty((2, len(tokens)), dtype=np.int64)  # positions and slots, which move on together
        self._places[0] = positions
        self._places[1] = table[rows, positions // block_tokens].astype(np.int64) * block_tokens
        self._places[1] += positions % block_tokens
        self._tokens, self._ends, self._table = tokens, ends, table
        self._addresses = tokens.ctypes.data, self._places.ctypes.data, ends.ctypes.data
        self.positions, self.slots = torch.from_numpy(self._places).unbind(0)
        self.tokens, self.starts, self.ends, self.table = map(torch.from_numpy, (tokens, starts, ends, table))
        self._last = self.starts[1:].long() - 1
        self.decodes = len(tokens) == len(ends)
        self.metadata = _metadata(self, lengths, ends)
        self.context: Any = None
        self.left = 0
        self.moved = 0

    @staticmethod
    def of(inputs: Seq[StepInput], block_tokens: int) -> Batch:
        """Raises BackendError when a block table is too short."""
        lengths = np.array([len(part.tokens) for part in inputs], dtype=np.int32)
        begins = np.array([part.position for part in inputs], dtype=np.int32)
        starts = np.zeros(len(inputs) + 1, dtype=np.int32)
        np.cumsum(lengths, out=starts[1:])
        positions = np.arange(starts[-1], dtype=np.int64) + np.repeat(begins - starts[:-1], lengths)
        tokens = np.array([token for part in inputs for token in part.tokens], dtype=np.int32)
        ends = begins + lengths
        table = _table(inputs, ends, block_tokens)
        return Batch(tokens, positions, starts, ends, table, block_tokens, [part.blocks for part in inputs])

    def advance(self, inputs: Seq[StepInput]) -> bool:
        """True when these are decodes of the same sequences, each one token further; the batch is then theirs."""
        if len(inputs) != len(self._owners) or not self.decodes:
            return False
        for part, end in zip(inputs, self._ends.tolist(), strict=True):
            if part.position != end or len(part.tokens) != 1 or not self._has_room(part):
                return False
        self.follow([part.tokens[0] for part in inputs])
        for row, part in enumerate(inputs):
            if part.blocks is not self._owners[row] or not part.position % self._block_tokens:
                self._replace(row, part)
        return True

    def follow(self, tokens: Seq[int]) -> None:
        """Become the next decodes of the same sequences with these tokens, in the same blocks."""
        advance(tokens, *self._addresses)
        self.left -= 1
        self.moved += 1

    def _has_room(self, part: StepInput) -> bool:
        room: int = min(len(part.blocks), self._table.shape[1])
        return part.position // self._block_tokens < room

    def _replace(self, row: int, part: StepInput) -> None:
        """A sequence begins a block, or has another table, as it was elsewhere meanwhile."""
        block, slot = divmod(part.position, self._block_tokens)
        self._table[row, : block + 1] = part.blocks[: block + 1]
        self._places[1, row] = int(part.blocks[block]) * self._block_tokens + slot
        self._owners[row] = part.blocks

    @contextmanager
    def ahead(self, steps: int) -> Iterator[surface.CommonAttentionMetadata]:
        """The input for building its metadata. Meanwhile decodes have the lengths that they will have after `steps`
        steps: a kernel for CPUs divides its work by these lengths, and reads the true ones when it runs."""
        if not self.decodes:
            yield self.metadata
            return
        self.metadata.max_seq_len = int(self._ends.max()) + steps
        self._ends += steps
        try:
            yield self.metadata
        finally:
            self._ends -= steps

    def keep(self, context: Any, steps: int) -> None:
        """Keep the metadata for this step and the next `steps`."""
        self.context, self.left = context, steps

    def last_rows(self, selected: Seq[int] | None) -> Tensor | None:
        """The rows of the last tokens of these sequences; None: all rows, as they are."""
        if selected is None or (self.decodes and len(selected) == len(self._owners)):
            return None
        return self._last[list(selected)]


def _metadata(batch: Batch, lengths: NDArray[np.int32], ends: NDArray[np.int32]) -> surface.CommonAttentionMetadata:
    """The metadata in the form that vLLM's builders take."""
    return surface.CommonAttentionMetadata(
        query_start_loc=batch.starts,
        query_start_loc_cpu=batch.starts,
        seq_lens=batch.ends,
        num_reqs=len(ends),
        num_actual_tokens=len(batch.tokens),
        max_query_len=int(lengths.max()),
        max_seq_len=int(ends.max()),
        block_table_tensor=batch.table,
        slot_mapping=batch.slots,
        causal=True,
        positions=batch.positions,
        is_prefilling=torch.from_numpy(lengths > 1),
        seq_lens_cpu_upper_bound=batch.ends,
    )


def _table(inputs: Seq[StepInput], ends: NDArray[np.int32], block_tokens: int) -> Blocks:
    """Rows are padded with a block of the batch: block 0 need not be mapped."""
    counts = -(-ends // block_tokens)
    table = np.full((len(inputs), int(counts.max()) + _SPARE), inputs[0].blocks[0], dtype=np.int32)
    for row, part, count in zip(table, inputs, counts, strict=True):
        if len(part.blocks) < count:
            raise BackendError(f"a block table has {len(part.blocks)} blocks, {count} are needed")
        row[:count] = part.blocks[:count]
    return table
