"""Matrix products of few rows that read weights as they lie, and whose rows do not depend on how many others there are.

A matrix library picks its kernel by the number of rows, and another kernel adds up in another order. From some number
of rows on, in multiples of it, the kernel is the same: that number is measured, and batches are padded to it.

torch's own product of a decode's few rows rearranges the weights or misses the vector units, and takes up to twice as
long as one of weights that were packed beforehand, which would be a copy beside the range. oneDNN with the weights in
the place of the inputs, and the few rows in that of the weights, packs the rows instead and is as quick
(`few_rows_product`). Of up to FEW_ROWS rows the native core's product takes half as long or less, and adds up in the
same order: it is used for weights of a shape where that was seen to be so, bit by bit.

oneDNN and torch keep compiled kernels, one for each number of rows and shape of weights, a third of a MiB each and by
default 1,024 of them: who uses it bounds them (`ENVIRONMENT` in vllm/__init__.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import nan

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from aegaeon_native import FEW_ROWS, few_rows

TILES = (1, 2, 4, 8, 16)
PIECES = (512, 1024, 256, 2048, 4096, 1 << 30)  # oneDNN's, by the size of what is added up
PROBED_ROWS = 48
Shapes = tuple[tuple[int, int], ...]  # inner and outer size of each
PROBED_SHAPES: Shapes = ((64, 96), (100, 50), (256, 1024), (1024, 512))
TURNED_ROWS = 64  # above it the inputs are the larger part, and turning the result round is no longer cheap

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


def steady_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: int) -> Tensor:
    """linear(x, weight, bias) for x [rows, inner], of rows that do not depend on the others. `tile`: of
    `few_rows_product`."""
    product = few_rows_product(weight.dtype)
    if 0 < len(x) <= FEW_ROWS and weight.is_contiguous():
        piece = _piece(*weight.shape, weight.dtype, torch.get_num_threads())
        if piece:
            few = _few_rows(x.contiguous(), weight, piece)
            return few if bias is None else few + bias
    return padded_linear(x, weight, bias, tile, product)


@lru_cache
def _piece(outer: int, inner: int, dtype: torch.dtype, threads: int) -> int:
    """Items that oneDNN adds up at a time in products with such weights; 0: not found, or it has several threads."""
    product = few_rows_product(dtype)
    if product is linear or dtype is not torch.float32 or threads > 1:
        return 0
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TURNED_ROWS + FEW_ROWS, inner, generator=generator)
    weight = torch.randn(min(outer, 64), inner, generator=generator).repeat(-(-outer // 64), 1)[:outer]
    few, wanted = x[:FEW_ROWS], product(x, weight, None)[:FEW_ROWS]
    pieces = (piece for piece in PIECES if torch.equal(_few_rows(few, weight, piece), wanted))
    return next(pieces, 0)


def _few_rows(x: Tensor, weight: Tensor, piece: int) -> Tensor:
    outer, inner = weight.shape
    out = x.new_full((len(x), outer), nan)  # stays where the processor cannot
    few_rows(x.data_ptr(), weight.data_ptr(), out.data_ptr(), len(x), outer, inner, piece)
    return out


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
    product = _pointwise(x, weight) if len(x) > TURNED_ROWS else _pointwise(weight, x).t().contiguous()
    return product if bias is None else product + bias


def _pointwise(x: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return product


def _steady(data: Tensor, tile: int, product: Product) -> bool:
    """Products of the first rows alone, in every multiple of `tile`, equal those of all rows, bit by bit."""
    x, weight = data[:PROBED_ROWS], data[PROBED_ROWS:]
    whole = product(x, weight, None)
    return all(torch.equal(product(x[:rows], weight, None), whole[:rows]) for rows in range(tile, len(x), tile))
