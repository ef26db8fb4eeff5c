"""Matrix products of few rows that read weights as they lie, and whose rows do not depend on how many others there are.

A matrix library picks its kernel by the number of rows, and another kernel adds up in another order. From some number
of rows on, in multiples of it, the kernel is the same: that number is measured, and batches are padded to it.

torch's own product of a decode's few rows rearranges the weights or misses the vector units, and takes up to twice as
long as one of weights that were packed beforehand, which would be a copy beside the range. oneDNN with the weights in
the place of the inputs, and the few rows in that of the weights, packs the rows instead and is as quick.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

TILES = (1, 2, 4, 8, 16)
PROBED_ROWS = 48
PROBED_SHAPES = ((64, 96), (100, 50), (256, 1024), (1024, 512))  # inner and outer size
FEW_ROWS = 64  # above it the inputs are the larger part, and turning the result round is no longer cheap

Product = Callable[[Tensor, Tensor], Tensor]


@lru_cache
def row_tile(dtype: torch.dtype, threads: int) -> int:
    """The multiple to pad batches to, for products on this CPU with so many threads; 0 when none was found."""
    generator = torch.Generator().manual_seed(0)
    for tile in TILES:
        probes = (torch.randn(PROBED_ROWS + outer, inner, generator=generator) for inner, outer in PROBED_SHAPES)
        if all(_steady(probe.to(dtype), tile) for probe in probes):
            return tile
    return 0


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: int) -> Tensor:
    """linear(x, weight, bias) for x [rows, inner], computed over a multiple of `tile` rows."""
    if weight.is_cuda or not len(x):
        return linear(x, weight, bias)
    missing = -len(x) % tile
    whole = pad(x, (0, 0, 0, missing)) if missing else x.contiguous()
    product = _product(weight.dtype)(whole, weight)
    product = product[: len(x)] if missing else product
    return product if bias is None else product + bias


@lru_cache
def _product(dtype: torch.dtype) -> Product:
    """oneDNN's where this build of torch has it for this CPU and dtype."""
    try:
        with torch.inference_mode():
            _onednn(torch.zeros(2, 32, dtype=dtype), torch.zeros(32, 32, dtype=dtype))
    except (AttributeError, RuntimeError, NotImplementedError):
        return linear
    return _onednn


def _onednn(x: Tensor, weight: Tensor) -> Tensor:
    if len(x) > FEW_ROWS:
        return _pointwise(x, weight)
    return _pointwise(weight, x).t().contiguous()


def _pointwise(x: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return product


def _steady(data: Tensor, tile: int) -> bool:
    """Products of the first rows alone, in every multiple of `tile`, equal those of all rows, bit by bit."""
    x, weight = data[:PROBED_ROWS], data[PROBED_ROWS:]
    whole = padded_linear(x, weight, None, 1)
    rows = range(tile, len(x), tile)
    return all(torch.equal(padded_linear(x[:count], weight, None, 1), whole[:count]) for count in rows)
