"""Draws of a batch on a GPU in one kernel, without sorting a vocabulary: what `pick` computes on a CPU.

The least logit that a filter keeps is looked for among the bits of float32, a quarter of them at a time: some 15 passes
over a row that lies in the cache. Of the sum's order nothing depends on the other rows. Checked on a CPU by Triton's
interpreter.
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl
from torch import Tensor

from aegaeon_native import NO_TOKEN
from aegaeon_sidecar.backends.device import on

TILE = 4096  # entries of a row at a time
WARPS = 16
# Logits are scaled to differences from the row's largest, of which the magnitude's bits are an entry's key: ascending
# with it, as integers. exp of one further away is 0 in float32: it is as good as filtered.
_LAST = struct.unpack("i", struct.pack("f", 104.0))[0]


@triton.jit  # type: ignore[untyped-decorator]  # triton has no annotations
def _scaled(  # type: ignore[no-untyped-def]  # triton reads annotations
    row, start, vocab, peak, temperature, tile: tl.constexpr
):
    """Entries from `start` on as differences from the largest over temperature, at most 0, and their keys."""
    place = start + tl.arange(0, tile)
    x = tl.load(row + place, mask=place < vocab, other=float("-inf"))
    scaled = tl.div_rn(x - peak, temperature)
    return place, scaled, tl.abs(scaled).to(tl.int32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no annotations
def _below(  # type: ignore[no-untyped-def]  # triton reads annotations
    row, vocab, peak, temperature, key, counted: tl.constexpr, tile: tl.constexpr
):
    """Weight of the entries whose key is less than this: their number, or the sum of their exponentials."""
    total = tl.zeros([1], tl.float64)
    for start in range(0, vocab, tile):
        _, scaled, keys = _scaled(row, start, vocab, peak, temperature, tile)
        weight = 1.0 if counted else tl.exp(scaled)
        total += tl.sum(tl.where(keys < key, weight, 0.0).to(tl.float64), 0)
    return tl.sum(total, 0)


@triton.jit  # type: ignore[untyped-decorator]  # triton has no annotations
def _least_key(  # type: ignore[no-untyped-def]  # triton reads annotations
    row, vocab, peak, temperature, target, last: tl.constexpr, counted: tl.constexpr, tile: tl.constexpr
):
    """The least key such that entries up to it weigh `target`; last + 1 when none does."""
    low = tl.zeros([], tl.int32)
    high = low + last + 1
    while low < high:
        step = (high - low) // 4
        first, second, third = low + step, low + 2 * step, low + 3 * step
        of_first, of_second, of_third = tl.zeros([1], tl.float64), tl.zeros([1], tl.float64), tl.zeros([1], tl.float64)
        for start in range(0, vocab, tile):
            _, scaled, keys = _scaled(row, start, vocab, peak, temperature, tile)
            weight = tl.where(keys <= third, 1.0 if counted else tl.exp(scaled), 0.0).to(tl.float64)
            of_third += tl.sum(weight, 0)
            of_second += tl.sum(tl.where(keys <= second, weight, 0.0), 0)
            of_first += tl.sum(tl.where(keys <= first, weight, 0.0), 0)
        in_first, in_second = tl.sum(of_first, 0) >= target, tl.sum(of_second, 0) >= target
        in_third = tl.sum(of_third, 0) >= target
        low = tl.where(in_first, low, tl.where(in_second, first + 1, tl.where(in_third, second + 1, third + 1)))
        high = tl.where(in_first, first, tl.where(in_second, second, tl.where(in_third, third, high)))
    return low


@triton.jit  # type: ignore[untyped-decorator]  # triton has no annotations
def _nucleus(  # type: ignore[no-untyped-def]  # triton reads annotations
    row, vocab, peak, temperature, top_k, top_p, last: tl.constexpr, tile: tl.constexpr
):
    """The largest key of the fewest of the `top_k` likeliest (0: all) entries that hold `top_p` of their mass."""
    key = tl.zeros([], tl.int32) + last + 1
    total = tl.zeros([], tl.float64)
    limited = (top_k > 0) & (top_k < vocab)
    if limited:
        key = _least_key(row, vocab, peak, temperature, top_k, last, True, tile)
    if top_p < 1:
        total = _below(row, vocab, peak, temperature, key, False, tile)
        if limited & (key <= last):  # of those that are as likely as the last one, as many as there is room for
            room = top_k - _below(row, vocab, peak, temperature, key, True, tile)
            total += room * tl.exp(-key.to(tl.float32, bitcast=True)).to(tl.float64)
        key = tl.minimum(key, _least_key(row, vocab, peak, temperature, top_p * total, last, False, tile))
    return key


@triton.jit(do_not_specialize=("row_stride", "vocab"))  # type: ignore[untyped-decorator]  # it would spill registers
def _draw(  # type: ignore[no-untyped-def]  # triton reads annotations
    logits,
    row_stride,
    rules,
    tokens,
    vocab,
    columns: tl.constexpr,
    no_token: tl.constexpr,
    last: tl.constexpr,
    tile: tl.constexpr,
):
    """One row: `tokens` holds the likeliest one, which a greedy row and one that is not finite keep."""
    number = tl.program_id(0)
    best = tl.load(tokens + number)
    rule = rules + number * columns
    hot = tl.load(rule)
    if (hot != 0) & (best != no_token):
        row = logits + number.to(tl.int64) * row_stride
        peak, temperature = tl.load(row + best), hot.to(tl.float32)
        key = _nucleus(row, vocab, peak, temperature, tl.load(rule + 1), tl.load(rule + 2), last, tile)
        min_p = tl.load(rule + 3)
        floor = tl.where(min_p > 0, tl.log(tl.where(min_p > 0, min_p, 1.0)), float("-inf")).to(tl.float32)
        total = tl.zeros([1], tl.float64)
        for start in range(0, vocab, tile):
            _, scaled, keys = _scaled(row, start, vocab, peak, temperature, tile)
            total += tl.sum(tl.where((keys <= key) & (scaled >= floor), tl.exp(scaled), 0.0).to(tl.float64), 0)
        target = tl.load(rule + 4) * tl.sum(total, 0)
        before, drawn = tl.zeros([], tl.float64), best
        reached = before > target  # not yet
        for start in range(0, vocab, tile):
            place, scaled, keys = _scaled(row, start, vocab, peak, temperature, tile)
            weight = tl.where((keys <= key) & (scaled >= floor), tl.exp(scaled), 0.0).to(tl.float64)
            after = before + tl.sum(weight, 0)
            # By rounding no partial sum may exceed what their total does: then it is the tile's last entry that counts.
            beyond = (before + tl.cumsum(weight, 0) > target) & (weight > 0)
            first = tl.min(tl.where(beyond, place, vocab), 0)
            latest = tl.max(tl.where(weight > 0, place, 0), 0)
            crosses = (after > target) & (~reached)
            drawn = tl.where(crosses, tl.where(first < vocab, first, latest).to(tl.int64), drawn)
            reached = reached | crosses
            before = after
        tl.store(tokens + number, drawn)


def draw(logits: Tensor, rules: Tensor, best: Tensor) -> Tensor:
    """See draws.pick. `best`: int64 [rows], what `likeliest` says of these logits."""
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    tokens = best.clone()
    with on(logits.device):
        _draw[(len(tokens),)](
            logits, logits.stride(0), rules.contiguous(), tokens, logits.shape[1],
            columns=rules.shape[1], no_token=NO_TOKEN, last=_LAST, tile=TILE, num_warps=WARPS,
        )  # fmt: skip
    return tokens
