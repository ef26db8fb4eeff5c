"""The division of a model among the ranks of an engine: tensor parallelism as in Megatron-LM (arXiv 1909.08053).

A rank's part is a smaller decoder: some of the heads, of the inner features and of the vocabulary. Its attention and
its feed-forward give parts of sums; what is added to a sum (a bias) is in the part of the first rank alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np

from aegaeon_sidecar.domain.errors import ConfigError
from aegaeon_sidecar.models.config import DecoderSpec
from aegaeon_sidecar.models.runs import Ints
from aegaeon_sidecar.models.tensors import EMBEDDING, HEAD, Shape


class Split(Enum):
    """The part of a tensor that a rank has."""

    WHOLE = "whole"
    ROWS = "rows"  # neighbouring rows; the last rank's end in zeros where the rows do not divide (vocabulary alone)
    COLUMNS = "columns"
    FIRST = "first"  # the first rank all of it, the others zeros


_BY_ROWS = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
_BY_COLUMNS = {"o_proj", "down_proj"}


def split_of(name: str) -> Split:
    """The split of a tensor, by its name in the files."""
    if name in (EMBEDDING, HEAD):
        return Split.ROWS
    *_, module, kind = name.split(".")
    if module in _BY_ROWS:
        return Split.ROWS
    if module in _BY_COLUMNS:
        return Split.COLUMNS if kind == "weight" else Split.FIRST
    return Split.WHOLE


def part_of(spec: DecoderSpec, ranks: int, directory: Path) -> DecoderSpec:
    """The decoder that each of so many ranks has. Raises ConfigError where the model cannot be divided so."""
    for field, size in (
        ("num_attention_heads", spec.heads),
        ("num_key_value_heads", spec.kv_heads),
        ("intermediate_size", spec.intermediate_size),
    ):
        if size % ranks:
            raise ConfigError(
                f"{directory / 'config.json'}: {field} is {size}, which {ranks} accelerators cannot share evenly; "
                f"serve the model in a GpuPool whose spec.accelerator.count divides it"
            )
    return replace(
        spec,
        heads=spec.heads // ranks,
        kv_heads=spec.kv_heads // ranks,
        intermediate_size=spec.intermediate_size // ranks,
        vocab_size=-(-spec.vocab_size // ranks),
    )


@dataclass(frozen=True, slots=True)
class Deal:
    """The places of one tensor's items in an image, which is the ranks' parts side by side.

    `offset`: of the tensor in each part; `stride`: from one part to the next, bytes; `run`: how many items in the order
    of the file one rank gets before it is the next one's turn.
    """

    offset: int
    split: Split = Split.WHOLE
    run: int = 0
    ranks: int = 1
    stride: int = 0

    @staticmethod
    def of(name: str, shape: Shape, offset: int, ranks: int, stride: int) -> Deal:
        """The deal of the tensor of this name, whose `shape` is that in the files."""
        split = split_of(name) if ranks > 1 else Split.WHOLE
        if split is Split.ROWS:
            return Deal(offset, split, -(-shape[0] // ranks) * math.prod(shape[1:]), ranks, stride)
        if split is Split.COLUMNS:
            return Deal(offset, split, shape[-1] // ranks, ranks, stride)
        return Deal(offset, split, math.prod(shape), ranks, stride)

    @property
    def raw(self) -> bool:
        """See Placement: floating-point weights are converted to the engine's dtype."""
        return False

    def covered(self, items: int, item: int) -> tuple[Ints, Ints]:
        """See Placement."""
        held = np.array([self.held(rank, items) for rank in range(self.ranks)])
        return self.offset + np.arange(self.ranks) * self.stride, held * item

    def held(self, rank: int, items: int) -> int:
        """The number of the tensor's items in this rank's part, whose other items are zeros."""
        if self.split is Split.COLUMNS:
            return items // self.ranks
        if self.split is Split.ROWS:
            return min(max(items - rank * self.run, 0), self.run)
        return items if self.split is Split.WHOLE or rank == 0 else 0

    def pieces(self, first: int, last: int, item: int) -> tuple[Ints, Ints, Ints]:
        """See Placement."""
        if self.split in (Split.WHOLE, Split.FIRST):
            rank = np.arange(self.ranks if self.split is Split.WHOLE else 1)
            begin, end, at = np.full_like(rank, first), np.full_like(rank, last), np.full_like(rank, first)
        else:
            borders = np.arange(first // self.run + 1, -(-last // self.run)) * self.run
            begin, end = np.append(first, borders), np.append(borders, last)
            turn, within = np.divmod(begin, self.run)
            rank, at = turn % self.ranks, turn // self.ranks * self.run + within
        return begin, end, self.offset + rank * self.stride + at * item
