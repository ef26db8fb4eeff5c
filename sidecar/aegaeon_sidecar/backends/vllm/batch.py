"""The sequences of a step as tensors: tokens one behind the other, where each is, and where its KV lies.

A decode step is mostly the one before it, one token further: its tensors are changed in place, as arrays that share
their memory, which takes a fraction of the time of making them anew.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.domain.errors import BackendError

Blocks = NDArray[np.int32]


class Batch:
    """`tokens` int32 and `positions`, `slots` int64 [tokens]; of each sequence: `starts` in these, and the end, int32
    [sequences + 1], `ends`: its tokens afterwards, and `table`: its blocks, int32 [sequences, most blocks].
    `metadata`: all of these as vLLM's builders take them."""

    def __init__(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int64],
        starts: NDArray[np.int32],
        ends: NDArray[np.int32],
        table: Blocks,
        block_tokens: int,
        owners: Seq[Blocks],
    ) -> None:
        """`owners`: the sequences' own block tables, which are replaced when they change, never changed."""
        self._block_tokens, self._owners = block_tokens, owners
        lengths = np.diff(starts)
        rows = np.repeat(np.arange(len(ends)), lengths)
        slots = table[rows, positions // block_tokens].astype(np.int64) * block_tokens + positions % block_tokens
        self._tokens, self._ends, self._moved = tokens, ends, (positions, slots, ends)
        self.tokens, self.positions, self.slots = (torch.from_numpy(of) for of in (tokens, positions, slots))
        self.starts, self.ends, self.table = (torch.from_numpy(of) for of in (starts, ends, table))
        self._last = self.starts[1:].long() - 1
        self.metadata = _metadata(self, lengths, ends)

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
        """Whether these are the decodes that follow this step, in the blocks that they had; then it is theirs."""
        if len(inputs) != len(self._owners) or self.metadata.max_query_len > 1:
            return False
        ends = self._ends.tolist()
        for part, blocks, end in zip(inputs, self._owners, ends, strict=True):
            if (
                part.blocks is not blocks
                or part.position != end
                or len(part.tokens) != 1
                or not end % self._block_tokens
            ):
                return False
        self._tokens[:] = [part.tokens[0] for part in inputs]
        for moved in self._moved:
            np.add(moved, 1, out=moved)
        self.metadata.max_seq_len += 1
        return True

    def last_rows(self, wanted: Seq[int] | None) -> Tensor | None:
        """The rows of the last tokens of these sequences; None: all rows, as they are."""
        if wanted is None or (self.metadata.max_query_len == 1 and len(wanted) == len(self._owners)):
            return None
        return self._last[list(wanted)]


def _metadata(batch: Batch, lengths: NDArray[np.int32], ends: NDArray[np.int32]) -> surface.CommonAttentionMetadata:
    """As vLLM's builders take it."""
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
    table = np.full((len(inputs), int(counts.max())), inputs[0].blocks[0], dtype=np.int32)
    for row, part, count in zip(table, inputs, counts, strict=True):
        if len(part.blocks) < count:
            raise BackendError(f"a block table has {len(part.blocks)} blocks, {count} are needed")
        row[:count] = part.blocks[:count]
    return table
