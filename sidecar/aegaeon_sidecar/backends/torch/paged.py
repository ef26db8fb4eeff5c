"""Attention of a batch of decodes over KV blocks where they lie, in Triton: nothing is gathered, shapes never change.

Fit for CUDA graphs: lengths and block tables are read on the device. A sequence's context is cut into pieces by its own
length, and their results are joined in order, so that no sum depends on the rest of the batch (flash-decoding, split by
position). Checked on a CPU by Triton's interpreter.

The blocks are passed by address: Triton's launcher refuses a pointer into unmapped memory, and the first slab of a
KV range may be unmapped while blocks behind it are in use. That it is a multiple of 16 is said again of the pointer
that is made of it: without that a kernel takes twice the registers. Integers that differ between passes and layers are
not specialised, or each kernel would be compiled anew, for seconds, when a context first crosses a power of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from aegaeon_sidecar.backends.device import on
from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.step_layout import Window

SPLIT_TOKENS = 256  # of one program; a context of 4096 tokens keeps 16 of them busy
MOST_SPLITS = 64  # of a longer context pieces are larger: these are enough for all multiprocessors
TILE_TOKENS = 64
LEAST_ROWS = 16  # the matrix units' smallest tile


@triton.jit  # type: ignore[untyped-decorator]  # triton has no annotations
def _pointer(address, dtype: tl.constexpr):  # type: ignore[no-untyped-def]  # triton reads annotations
    """A pointer to items of `dtype`. Triton's interpreter takes addresses below 2 GiB for 32 bits wide, whatever is
    annotated; heaps of executables that are linked to a fixed address, as Debian's Python is, lie there."""
    return tl.multiple_of(address.to(tl.int64).to(tl.pointer_type(dtype)), 16)


@triton.jit(do_not_specialize=("key_stride", "value_stride", "table_width", "layer"))  # type: ignore[untyped-decorator]  # triton has no annotations
def _write(  # type: ignore[no-untyped-def]  # triton reads annotations
    keys,
    key_stride,
    values,
    value_stride,
    cache: tl.int64,
    tables,
    table_width,
    lengths,
    layer,
    layers: tl.constexpr,
    slots: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
):
    """The new token's keys and values of each row to their slot; rows of length 0 write nothing."""
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    if length > 0:
        position = length - 1
        block = tl.load(tables + row * table_width + position // slots).to(tl.int64)
        blocks = _pointer(cache, keys.dtype.element_ty)
        at = blocks + (block * layers + layer) * (2 * slots * width) + (position % slots) * width
        lane = tl.arange(0, wide)
        inside = lane < width
        tl.store(at + lane, tl.load(keys + row * key_stride + lane, mask=inside), mask=inside)
        tl.store(at + slots * width + lane, tl.load(values + row * value_stride + lane, mask=inside), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no annotations
def _piece(length, least: tl.constexpr, most: tl.constexpr):  # type: ignore[no-untyped-def]  # triton reads annotations
    """Tokens of one piece of a context of `length`: the multiple of `least` of which it has at most `most`."""
    return tl.maximum(tl.cdiv(length, least * most), 1) * least


@triton.jit
def _online(q, k, v, seen, scale, m_i, l_i, acc):  # type: ignore[no-untyped-def]  # triton reads annotations
    """One tile more of an online softmax (arXiv 1805.02867). `m_i`: largest score so far; `l_i`: sum of exponentials;
    `acc`: their sum weighted with values. Names as in FlashAttention-2 (arXiv 2307.08691, Algorithm 1)."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    score = tl.where(seen[None, :], score, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(score, 1))
    alpha = tl.exp(m_i - m_new)
    p = tl.exp(score - m_new[:, None])
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return m_new, l_i, acc


@triton.jit  # type: ignore[untyped-decorator]  # triton has no annotations
def _keys_at(  # type: ignore[no-untyped-def]  # triton reads annotations
    table, place, seen, layer, layers: tl.constexpr, slots: tl.constexpr, width: tl.constexpr
):
    """The place in the cache where the keys of these positions of a sequence begin, in items; values are slots * width
    behind."""
    block = tl.load(table + place // slots, mask=seen, other=0).to(tl.int64)
    return (block * layers + layer) * (2 * slots * width) + (place % slots) * width


@triton.jit(do_not_specialize=("row_stride", "table_width", "splits", "layer", "window"))  # type: ignore[untyped-decorator]  # triton has no annotations
def _attend_split(  # type: ignore[no-untyped-def]  # triton reads annotations
    queries,
    row_stride,
    cache: tl.int64,
    tables,
    table_width,
    lengths,
    partial,
    lse,
    splits,
    layer,
    window,
    scale,
    layers: tl.constexpr,
    slots: tl.constexpr,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    rows: tl.constexpr,
    dim: tl.constexpr,
    lanes: tl.constexpr,
    least: tl.constexpr,
    most: tl.constexpr,
    tile: tl.constexpr,
):
    """One sequence, one key head, one piece of the context: the piece's mean of values and log-sum-exp."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    piece = _piece(length, least, most)
    low, end = tl.maximum(length - window, 0), tl.minimum((split + 1) * piece, length)
    begin = tl.maximum(split * piece, low // tile * tile)
    if begin < end:
        blocks = _pointer(cache, queries.dtype.element_ty)
        member, lane = tl.arange(0, rows), tl.arange(0, lanes)
        real = (member < group)[:, None] & (lane < dim)[None, :]
        q_at = queries + row * row_stride + (head * group + member)[:, None] * dim + lane[None, :]
        q = tl.load(q_at, mask=real, other=0.0)
        m_i, l_i = tl.full([rows], float("-inf"), tl.float32), tl.zeros([rows], tl.float32)
        acc = tl.zeros([rows, lanes], tl.float32)
        for start in range(begin, end, tile):
            place = start + tl.arange(0, tile)
            seen = (place >= low) & (place < end)
            held = seen[:, None] & (lane < dim)[None, :]
            at = _keys_at(tables + row * table_width, place, seen, layer, layers, slots, kv_heads * dim)
            at = blocks + at[:, None] + head * dim + lane[None, :]
            k = tl.load(at, mask=held, other=0.0)
            v = tl.load(at + slots * kv_heads * dim, mask=held, other=0.0)
            m_i, l_i, acc = _online(q, k, v, seen, scale, m_i, l_i, acc)
        out_at = (row * (kv_heads * group) + head * group + member) * splits + split
        tl.store(partial + out_at[:, None] * dim + lane[None, :], acc / l_i[:, None], mask=real)
        tl.store(lse + out_at, m_i + tl.log(l_i), mask=member < group)


@triton.jit(do_not_specialize=("splits", "window"))  # type: ignore[untyped-decorator]  # triton has no annotations
def _join(  # type: ignore[no-untyped-def]  # triton reads annotations
    partial,
    lse,
    splits,
    lengths,
    window,
    out,
    heads: tl.constexpr,
    dim: tl.constexpr,
    lanes: tl.constexpr,
    least: tl.constexpr,
    most: tl.constexpr,
):
    """The pieces of one sequence and head, joined in order of position; rows of length 0 are zero."""
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + row)
    piece = _piece(length, least, most)
    low = tl.maximum(length - window, 0)
    lane = tl.arange(0, lanes)
    m_i = float("-inf")
    l_i = 0.0
    acc = tl.zeros([lanes], tl.float32)
    for split in range(low // piece, tl.cdiv(length, piece)):
        at = (row * heads + head) * splits + split
        lse_piece = tl.load(lse + at)
        m_new = tl.maximum(m_i, lse_piece)
        alpha, p = tl.exp(m_i - m_new), tl.exp(lse_piece - m_new)
        acc = acc * alpha + tl.load(partial + at * dim + lane, mask=lane < dim, other=0.0) * p
        l_i = l_i * alpha + p
        m_i = m_new
    acc = tl.where(length > 0, acc / tl.maximum(l_i, 1e-38), 0.0)
    tl.store(out + (row * heads + head) * dim + lane, acc.to(out.dtype.element_ty), mask=lane < dim)


@dataclass(frozen=True, slots=True)
class Paged:
    """A step of decodes: row i has `lengths[i]` tokens (the new one included, 0: an empty row), in blocks `tables[i]`.

    `lengths` int32 [rows], `tables` int32 [rows, blocks], both on the cache's device; their values may change between
    steps, as may the blocks behind them. `context`: tokens that no row has more of. Programs are started for so many.
    """

    cache: KvCache
    lengths: Tensor
    tables: Tensor
    context: int

    def attend(self, layer: int, window: Window, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See Attention; one token each."""
        with on(queries.device):
            return self._attend(layer, window, queries, keys, values)

    def _attend(self, layer: int, window: Window, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        shape, (rows, heads, dim) = self.cache.shape, queries.shape
        kv_heads, reach = shape.kv_heads, 2**30 if window is None else window
        width = kv_heads * dim
        place = (self.cache.flat.data_ptr(), self.tables, self.tables.shape[1], self.lengths)
        _write[(rows,)](
            *_by_row(keys), *_by_row(values), *place, layer,
            layers=shape.layers, slots=shape.block_tokens, width=width, wide=triton.next_power_of_2(width),
        )  # fmt: skip
        splits = min(-(-self.context // SPLIT_TOKENS), MOST_SPLITS)
        partial = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=queries.device)
        lse = torch.empty(rows, heads, splits, dtype=torch.float32, device=queries.device)
        lanes, group = triton.next_power_of_2(dim), heads // kv_heads
        _attend_split[(rows, kv_heads, splits)](
            *_by_row(queries), *place, partial, lse, splits, layer, reach, 1.0 / math.sqrt(dim),
            layers=shape.layers, slots=shape.block_tokens, kv_heads=kv_heads, group=group,
            rows=max(triton.next_power_of_2(group), LEAST_ROWS), dim=dim, lanes=lanes,
            least=SPLIT_TOKENS, most=MOST_SPLITS, tile=TILE_TOKENS,
        )  # fmt: skip
        out = torch.empty(rows, heads * dim, dtype=queries.dtype, device=queries.device)
        _join[(rows, heads)](
            partial, lse, splits, self.lengths, reach, out,
            heads=heads, dim=dim, lanes=lanes, least=SPLIT_TOKENS, most=MOST_SPLITS,
        )  # fmt: skip
        return out


def _by_row(x: Tensor) -> tuple[Tensor, int]:
    """[rows, heads, dim] as rows without gaps inside, and the distance between them: slices need no copy."""
    flat = x.reshape(len(x), -1)
    return flat, flat.stride(0)
