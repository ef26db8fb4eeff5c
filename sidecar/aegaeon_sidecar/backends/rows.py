"""Matrix products of few rows that read weights as they lie, and whose rows do not depend on how many others there are.

A matrix library picks its kernel by the number of rows, and another kernel adds up in another order. From some number
of rows on, in multiples of it, the kernel is the same: that number is measured, and batches are padded to it.

torch's own product of a decode's few rows rearranges the weights or misses the vector units, and takes up to twice as
long as one of weights that were packed beforehand, which would be a copy beside the range. oneDNN with the weights in
the place of the inputs, and the few rows in that of the weights, packs the rows instead and is as quick
(`few_rows_product`). It and torch keep compiled kernels, one for each number of rows and shape of weights, a third of
a MiB each and by default 1,024 of them: who uses it bounds them (`ENVIRONMENT` in vllm/__init__.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

TILES = (1, 2, 4, 8, 16)
PROBED_ROWS = 48
Shapes = tuple[tuple[int, int], ...]  # inner and outer size of each
PROBED_SHAPES: Shapes = ((64, 96), (100, 50), (256, 1024), (1024, 512))
FEW_ROWS = 64  # above it the inputs are the larger part, and turning the result round is no longer cheap

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""linear(x, weight, bias)"""


@lru_cache
def row_tile(dtype: torch.dtype, threads: int, product: Product = linear, shapes: Shapes = PROBED_SHAPES) -> int:
    """The multiple to pad batches to, for products on this CPU with so many threads; 0 when none was found.

    `shapes`: of weights that are tried. Narrow ones have kernels of their own.
    """
    generator = torch.Generator().manual_seed(0)
    for tile in TILES:
        probes = (torch.randn(PROBED_ROWS + outer, inner, generator=generator) for inner, outer in shapes)
        if all(_steady(probe.to(dtype), tile, product) for probe in probes):
            return tile
    return 0


def low_rank_shapes(rank: int) -> Shapes:
    """Of the two products of an adapter, for layers of some sizes."""
    return tuple(shape for size in (128, 256, 512, 1024, 4096) for shape in ((size, rank), (rank, size)))


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: int, product: Product = linear) -> Tensor:
    """linear(x, weight, bias) for x [rows, inner], computed over a multiple of `tile` rows."""
    missing = -len(x) % tile
    if not missing:
        return product(x, weight, bias)
    return product(pad(x, (0, 0, 0, missing)), weight, bias)[: len(x)]


@lru_cache
def few_rows_product(dtype: torch.dtype) -> Product:
    """oneDNN's where this build of torch has it for this CPU and dtype, else torch's."""
    try:
        with torch.inference_mode():
            _onednn(torch.zeros(2, 32, dtype=dtype), torch.zeros(32, 32, dtype=dtype), None)
    except (AttributeError, RuntimeError, NotImplementedError):
        return linear
    return _onednn


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not len(x):
        return linear(x, weight, bias)
    x = x.contiguous()
    product = _pointwise(x, weight) if len(x) > FEW_ROWS else _pointwise(weight, x).t().contiguous()
    return product if bias is None else product + bias


def _pointwise(x: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return product


def _steady(data: Tensor, tile: int, product: Product) -> bool:
    """Products of the first rows alone, in every multiple of `tile`, equal those of all rows, bit by bit."""
    x, weight = data[:PROBED_ROWS], data[PROBED_ROWS:]
    whole = product(x, weight, None)
    return all(torch.equal(product(x[:rows], weight, None), whole[:rows]) for rows in range(tile, len(x), tile))
