"""Matrix products that read weights as they lie, and whose rows do not depend on how many others there are.

In float32, with one thread, the native core's (`row_product`), which adds up in one order whatever the number of rows.
Elsewhere a matrix library picks its kernel by the number of rows, and another kernel adds up in another order. From
some number of rows on, in multiples of it, the kernel is the same: that number is measured, and batches are padded to
it.

torch's own product of a decode's few rows rearranges the weights or misses the vector units, and takes up to twice as
long as one of weights that were packed beforehand, which would be a copy beside the range. oneDNN with the weights in
the place of the inputs, and the few rows in that of the weights, packs the rows instead and is as quick.

In bfloat16 oneDNN adds up many rows, as those of a prompt, in another order than few, which depends on the weight's
shape. They are computed in pieces of such sizes as were seen to give the bits of few.

oneDNN and torch keep compiled kernels, one for each number of rows and shape of weights, a third of a MiB each and by
default 1,024 of them, which is bounded before the first product.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from aegaeon_native import row_product, row_product_supported

_KEPT_KERNELS = {  # a model's decodes have some 80
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "LRU_CACHE_CAPACITY": "256",
}
TILES = (1, 2, 4, 8, 16)
PROBED_ROWS, PROBED_COUNTS = 200, 48
Shapes = tuple[tuple[int, int], ...]  # inner and outer size of each
PROBED_SHAPES: Shapes = ((64, 96), (100, 50), (256, 1024), (1024, 512))
TURNED_ROWS = 64  # above it the inputs are the larger part, and turning the result round is no longer cheap
SURE_ROWS = 16  # of these no product in bfloat16 has been seen to depend on their number
PIECE_ROWS = (256, 128, 64, 32)
_PROBED_OUTER = 4096  # of a larger weight: memory for a probe is not reserved

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""linear(x, weight, bias)"""
_Plain = Callable[[Tensor, Tensor], Tensor]


@lru_cache
def row_tile(dtype: torch.dtype, threads: int, product: Product = linear, shapes: Shapes = PROBED_SHAPES) -> int:
    """The multiple to pad batches to, for products on this CPU with so many threads; 0 when none was found.

    `shapes`: of weights that are tried. Narrow ones have kernels of their own.
    """
    probes = [_probe(PROBED_ROWS, outer, inner, dtype) for inner, outer in shapes]
    for tile in TILES:
        if all(_steady(*probe, tile, product) for probe in probes):
            return tile
    return 0


def low_rank_shapes(rank: int) -> Shapes:
    """The shapes of the two products of an adapter, for layers of several sizes."""
    return tuple(shape for size in (128, 256, 512, 1024, 4096) for shape in ((size, rank), (rank, size)))


def steady_linear(dtype: torch.dtype, threads: int, shapes: Shapes = PROBED_SHAPES) -> Product:
    """`steady_product`, with batches padded to its `row_tile` for such weights; as it is where none was found."""
    product = steady_product(dtype, threads)
    tile = row_tile(dtype, threads, product, shapes)
    return partial(padded_linear, tile=tile, product=product) if tile > 1 else product


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: int, product: Product = linear) -> Tensor:
    """linear(x, weight, bias) for x [rows, inner], computed over a multiple of `tile` rows."""
    missing = -len(x) % tile
    if not missing:
        return product(x, weight, bias)
    return product(pad(x, (0, 0, 0, missing)), weight, bias)[: len(x)]


def steady_product(dtype: torch.dtype, threads: int) -> Product:
    """The quickest whose rows do not depend on the others, padded to its `row_tile`, on this CPU with so many threads:
    the native core's, else oneDNN's where this build of torch has it, else torch's."""
    if has_native_product(dtype, threads):
        return _native
    return _onednn if _has_onednn(dtype) else linear


def has_native_product(dtype: torch.dtype, threads: int) -> bool:
    """True when `steady_product` is the native core's, which computes any number of rows alike."""
    return dtype is torch.float32 and threads == 1 and row_product_supported()


def _native(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    outer, inner = weight.shape
    out = x.new_empty(len(x), outer)
    row_product(x.data_ptr(), weight.data_ptr(), out.data_ptr(), len(x), outer, inner)
    return out if bias is None else out.add_(bias)


@cache
def _has_onednn(dtype: torch.dtype) -> bool:
    os.environ.update({name: os.environ.get(name, kept) for name, kept in _KEPT_KERNELS.items()})
    try:
        with torch.inference_mode():
            _onednn(torch.zeros(2, 32, dtype=dtype), torch.zeros(32, 32, dtype=dtype), None)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return True


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not len(x):
        return linear(x, weight, bias)
    x, weight = x.contiguous(), weight.contiguous()  # of others some numbers of rows have sums of another order
    if len(x) > SURE_ROWS and x.dtype is torch.bfloat16:
        product = _in_pieces(x, weight)
    else:
        product = _turned(x, weight) if len(x) <= TURNED_ROWS else _pointwise(x, weight)
    return product if bias is None else product + bias


def _in_pieces(x: Tensor, weight: Tensor) -> Tensor:
    """Each piece has the bits of few rows."""
    ways = _ways(min(len(weight), _PROBED_OUTER), weight.shape[1], weight.dtype, torch.get_num_threads())
    products, left = [], x
    while len(left):
        most, product = next((way for way in ways if way[0] <= len(left)), ways[-1])
        products.append(product(left[:most], weight))
        left = left[most:]
    return products[0] if len(products) == 1 else torch.cat(products)


@cache
def _ways(outer: int, inner: int, dtype: torch.dtype, threads: int) -> tuple[tuple[int, _Plain], ...]:
    """Sizes of pieces, the largest first, and the product that gives them the bits of few rows. Pieces smaller than the
    last are computed as that one is."""
    x, weight = _probe(PIECE_ROWS[0], outer, inner, dtype)
    few = torch.cat([_turned(x[at : at + SURE_ROWS], weight) for at in range(0, len(x), SURE_ROWS)])
    usable: list[tuple[int, _Plain]] = []
    for rows in PIECE_ROWS:
        ways = (_pointwise, _turned) if rows > TURNED_ROWS else (_turned,)
        usable += [(rows, way) for way in ways if torch.equal(way(x[:rows], weight), few[:rows])][:1]
    turned = [(rows, way) for rows, way in usable if rows <= TURNED_ROWS]
    steady = len(turned) == sum(rows <= TURNED_ROWS for rows in PIECE_ROWS)
    return (*usable[: len(usable) - len(turned)], (TURNED_ROWS, _turned)) if steady else (*usable, (SURE_ROWS, _turned))


def _turned(x: Tensor, weight: Tensor) -> Tensor:
    return _pointwise(weight, x).t().contiguous()


def _pointwise(x: Tensor, weight: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return product


def _probe(rows: int, outer: int, inner: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [rows, inner] and weight [outer, inner] whose product is 0 but for the rounding on the way: another order of
    adding up shows in every digit, not once in ten thousand results, as in bfloat16 otherwise."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(inner // 2, generator=generator)
    x, weight = (torch.randn(count, inner // 2, generator=generator).to(dtype) for count in (rows, min(outer, 64)))
    weight = weight.repeat(-(-outer // 64), 1)[:outer]
    x, weight = torch.cat((x, -x[:, order]), dim=1), torch.cat((weight, weight[:, order]), dim=1)
    return pad(x, (0, inner % 2)), pad(weight, (0, inner % 2))


def _steady(x: Tensor, weight: Tensor, tile: int, product: Product) -> bool:
    """Products of the first rows alone, in multiples of `tile`, equal those of all rows, bit by bit."""
    complete = product(x, weight, None)
    return all(
        torch.equal(product(x[:rows], weight, None), complete[:rows]) for rows in range(tile, PROBED_COUNTS, tile)
    )
