"""Matrix products whose rows do not depend on how many other rows there are.

A matrix library picks its kernel by the number of rows, and another kernel adds up in another order. From some number
of rows on, in multiples of it, the kernel is the same: that number is measured, and batches are padded to it.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

TILES = (1, 2, 4, 8, 16)
PROBED_ROWS = 48
Shapes = tuple[tuple[int, int], ...]  # inner and outer size of each
PROBED_SHAPES: Shapes = ((64, 96), (100, 50), (256, 1024))


@lru_cache
def row_tile(dtype: torch.dtype, threads: int, shapes: Shapes = PROBED_SHAPES) -> int:
    """The multiple to pad batches to, for products on this CPU with so many threads; 0 when none was found.

    `shapes`: of weights that are tried. Narrow ones have kernels of their own.
    """
    generator = torch.Generator().manual_seed(0)
    for tile in TILES:
        probes = (torch.randn(PROBED_ROWS + outer, inner, generator=generator) for inner, outer in shapes)
        if all(_steady(probe.to(dtype), tile) for probe in probes):
            return tile
    return 0


def low_rank_shapes(rank: int) -> Shapes:
    """Of the two products of an adapter, for layers of some sizes."""
    return tuple(shape for size in (128, 256, 512, 1024, 4096) for shape in ((size, rank), (rank, size)))


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: int) -> Tensor:
    """linear(x, weight, bias) for x [rows, inner], computed over a multiple of `tile` rows."""
    missing = -len(x) % tile
    if not missing:
        return linear(x, weight, bias)
    return linear(pad(x, (0, 0, 0, missing)), weight, bias)[: len(x)]


def _steady(data: Tensor, tile: int) -> bool:
    """Products of the first rows alone, in every multiple of `tile`, equal those of all rows, bit by bit."""
    x, weight = data[:PROBED_ROWS], data[PROBED_ROWS:]
    whole = linear(x, weight)
    return all(torch.equal(linear(x[:rows], weight), whole[:rows]) for rows in range(tile, len(x), tile))
