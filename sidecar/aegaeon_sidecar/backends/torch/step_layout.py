"""The index tensors of a forward pass, made from the inputs of a step in a few numpy calls.

Decodes share attention calls (all of them, or, when rows may not depend on their company, those of one length); a
chunk of a prompt has its own. Every slot that attention gathers is finite: a block is zeroed when its first token is
written, and padding repeats a sequence's own block.

torch's attention on a CPU takes 32 queries at a time, 64 from 192 on and 256 from 768 on, and adds up in an order that
depends on how many queries and keys there are. A chunk is therefore computed in pieces that begin at multiples of PIECE
tokens, in which a query has its place among QUERY_TILE others, and keys, by positions alone: wherever a prompt is cut.

What a chunk's tokens see follows from their positions, so nothing here is as large as its tokens times its context.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.models.layout import KvShape

QUERY_TILE = 16
PIECE = 128
Ints = NDArray[np.int64]
Window = int | None
Masks = dict[Window, Tensor | None]


@dataclass(frozen=True, slots=True)
class Decodes:
    """Decodes whose attention is one call. Token rows first .. first + sequences of the step.

    `reads`: for each layer the cache rows to gather, [2, sequences, blocks] flattened; `context`: positions attended to
    at most; `masks` by window: additive, [sequences, 1, 1, context]; None where all is seen.
    """

    first: int
    sequences: int
    context: int
    reads: tuple[Tensor, ...]
    masks: Masks


@dataclass(frozen=True, slots=True)
class Piece:
    """Queries of a chunk whose attention is one call: its rows first .. first + queries, with `before` and `after`
    rows of zeros around them.

    `position`: of the first query, each of which sees the positions up to its own; `context`: those that are attended
    to, some of which may lie behind the last query.
    """

    first: int
    queries: int
    before: int
    after: int
    position: int
    context: int

    @property
    def end(self) -> int:
        """The position behind the last query's."""
        return self.position + self.queries


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of a prompt. Token rows first .. first + queries of the step, in `pieces`; `reads`: the cache rows to gather
    for layer 0, [2, blocks] flattened; those of layer l are 2 * l further."""

    first: int
    queries: int
    reads: Tensor
    pieces: tuple[Piece, ...]


Group = Decodes | Chunk


@dataclass(frozen=True, slots=True)
class StepLayout:
    """`keys`, `values`: for each layer the cache's token rows to write; `fresh`: blocks to zero before; `last`: rows
    whose logits are wanted, in the order of the inputs."""

    tokens: Tensor
    positions: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    fresh: Tensor | None
    groups: tuple[Group, ...]
    last: Tensor


class LayoutBuilder:
    """Lays out the steps of models with one KV shape and one set of attention windows.

    `invariant`: decodes of different lengths do not share an attention call, so that padding cannot reach a sum, and
    on a CPU no row of a prompt depends on where the prompt is cut.
    """

    def __init__(
        self, shape: KvShape, windows: Seq[Window], vocab_size: int, device: torch.device, invariant: bool
    ) -> None:
        self._invariant = invariant
        self._shape = shape
        self._windows = set(windows)
        self._vocab_size = vocab_size
        self._device = device
        self._aligned = invariant and device.type == "cpu"
        # A call of one sequence and key head is one thread's work, of which the matrix library gives others a part.
        self._apart = self._aligned and shape.kv_heads == 1 and torch.get_num_threads() > 1
        layer = np.arange(shape.layers, dtype=np.int64)[:, None]
        self._layer_rows: Ints = layer * 2
        self._layer_tokens = torch.from_numpy(layer * (2 * shape.block_tokens)).to(device)

    def build(self, inputs: Seq[StepInput], selected: Seq[int], capacity: int) -> StepLayout:
        """`selected`: indices of the inputs whose last logits are needed. Raises BackendError for a bad input."""
        order = sorted(range(len(inputs)), key=lambda i: (not inputs[i].is_decode, inputs[i].position))
        ordered = [inputs[i] for i in order]
        lengths = np.array([len(part.tokens) for part in ordered], dtype=np.int64)
        starts = np.array([part.position for part in ordered], dtype=np.int64)
        tokens = np.fromiter(chain.from_iterable(part.tokens for part in ordered), dtype=np.int64)
        if lengths.min() < 1 or tokens.min() < 0 or tokens.max() >= self._vocab_size:
            raise BackendError(f"a step needs tokens from 0 to {self._vocab_size - 1}, at least one for each sequence")
        tables = self._tables(ordered, starts + lengths, capacity)
        ends = np.cumsum(lengths)
        positions = np.arange(len(tokens)) + np.repeat(starts + lengths - ends, lengths)
        keys = self._tensor(self._keys(tables, positions, lengths)) + self._layer_tokens
        last = np.empty_like(ends)
        last[order] = ends - 1
        return StepLayout(
            tokens=self._tensor(tokens),
            positions=self._tensor(positions),
            keys=keys.unbind(0),
            values=(keys + self._shape.block_tokens).unbind(0),
            fresh=self._fresh(tables, starts, starts + lengths),
            groups=self._groups(tables, starts, lengths, sum(part.is_decode for part in inputs)),
            last=self._tensor(last[list(selected)]),
        )

    def _tables(self, inputs: Seq[StepInput], ends: Ints, capacity: int) -> Ints:
        """Block tables [sequences, longest], padded with each sequence's first block."""
        counts = -(-ends // self._shape.block_tokens)
        tables = np.empty((len(inputs), int(counts.max())), dtype=np.int64)
        for table, part, count in zip(tables, inputs, counts.tolist(), strict=True):
            if len(part.blocks) < count:
                raise BackendError(f"a block table of {len(part.blocks)} is too short, {count} blocks are needed")
            table[:count] = part.blocks[:count]
            table[count:] = part.blocks[0]
        if tables.min() < 0 or tables.max() >= capacity:
            raise BackendError(f"a block table names blocks outside 0 to {capacity - 1}")
        return tables

    def _keys(self, tables: Ints, positions: Ints, lengths: Ints) -> Ints:
        """Token rows [tokens] that the new keys of layer 0 go to."""
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        block, slot = np.divmod(positions, self._shape.block_tokens)
        rows: Ints = tables[sequence, block] * (2 * self._shape.layers)
        return rows * self._shape.block_tokens + slot

    def _fresh(self, tables: Ints, starts: Ints, ends: Ints) -> Tensor | None:
        """The last block of each sequence, where this step begins it and leaves slots of it empty."""
        size = self._shape.block_tokens
        block, used = np.divmod(ends, size)
        begun = np.flatnonzero((used != 0) & (block * size >= starts))
        return self._tensor(tables[begun, block[begun]]) if begun.size else None

    def _groups(self, tables: Ints, starts: Ints, lengths: Ints, decodes: int) -> tuple[Group, ...]:
        groups: list[Group] = []
        for a, b in self._runs(starts[:decodes]):
            groups.append(self._decodes(a, tables[a:b], starts[a:b] + 1))
        first = decodes
        for i in range(decodes, len(lengths)):
            groups.append(self._chunk(first, tables[i : i + 1], int(starts[i]), int(lengths[i])))
            first += int(lengths[i])
        return tuple(groups)

    def _runs(self, starts: Ints) -> list[tuple[int, int]]:
        """The decodes (in order of position) that share an attention call: [first, end)."""
        if not starts.size:
            return []
        if self._apart:
            return list(pairwise(range(len(starts) + 1)))
        borders: list[int] = (np.flatnonzero(np.diff(starts)) + 1).tolist() if self._invariant else []
        edges = [0, *borders, len(starts)]
        return list(pairwise(edges))

    def _decodes(self, first: int, tables: Ints, ends: Ints) -> Decodes:
        context = int(ends.max())
        masks: Masks = {}
        for window in self._windows:
            masks[window] = self._decode_mask(ends, context, context if window is None else min(window, context))
        reads = self._tensor(self._rows(tables, context) + self._layer_rows).unbind(0)
        return Decodes(first, len(ends), context, reads, masks)

    def _decode_mask(self, ends: Ints, context: int, reach: int) -> Tensor | None:
        """Each decode sees its own last `reach` tokens; None when that is all there is."""
        if reach == context and ends.min() == context:
            return None
        place = np.arange(context)[None, :] - ends[:, None]  # -1 is the token itself
        return self._mask(((place < 0) & (place >= -reach))[:, None, None, :])

    def _chunk(self, first: int, table: Ints, start: int, count: int) -> Chunk:
        end = start + count
        if not self._aligned:
            pieces: tuple[Piece, ...] = (Piece(0, count, 0, 0, start, end),)
        else:
            edges = [start, *range(start - start % PIECE + PIECE, end, PIECE), end]
            pieces = tuple(
                Piece(a - start, b - a, a % QUERY_TILE, -b % QUERY_TILE, a, -(-b // PIECE) * PIECE)
                for a, b in pairwise(edges)
            )
        context = -(-pieces[-1].context // QUERY_TILE) * QUERY_TILE  # as wide as a mask of it is
        missing = -(-context // self._shape.block_tokens) - table.shape[1]
        table = np.pad(table, ((0, 0), (0, missing)), mode="edge") if missing > 0 else table
        return Chunk(first, count, self._tensor(self._rows(table, context)), pieces)

    def _rows(self, tables: Ints, context: int) -> Ints:
        """Cache rows of layer 0's keys, then of its values."""
        blocks = -(-context // self._shape.block_tokens)
        rows = tables[:, :blocks].ravel() * (2 * self._shape.layers)
        return np.concatenate((rows, rows + 1))

    def _mask(self, seen: NDArray[np.bool_]) -> Tensor:
        zero, never = np.float32(0.0), np.float32(-np.inf)
        return self._tensor(np.where(seen, zero, never)).to(getattr(torch, self._shape.dtype))

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.float32]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)
