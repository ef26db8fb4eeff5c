"""A request's KV through a copy lane beside memcpy, and both layouts of the cache in copy and attention.

A request's copy is one call, whatever its blocks. Block-major keeps all layers of a block together,
[block, layer, 2, token, head, dim]; layer-major keeps a layer's blocks together, [layer, block, 2, token, head, dim],
so that a request is a copy per block and layer. Attention gathers a layer's blocks of a batch and multiplies, as the
torch backend does. Shapes of a 1B model in float16: 16 layers, 8 KV heads of 64, blocks of 16 tokens.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from benchmarks.report import Row, report

from aegaeon_native import BlockPool, CopyLane, SlabPool

LAYERS, HEADS, DIM, TOKENS = 16, 8, 64, 16
LAYER_BYTES = 2 * TOKENS * HEADS * DIM * 2
BLOCK_BYTES = LAYERS * LAYER_BYTES
SLAB_BYTES, SLABS = 2 << 20, 128
ROUNDS = 15


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


class Tiers:
    """All blocks of a host and of a device tier, in random order: what requests' blocks look like after a while."""

    def __init__(self, path: Path) -> None:
        self.slabs = [SlabPool.private("bench", SLAB_BYTES, SLABS), SlabPool.shared(str(path), SLAB_BYTES, SLABS)]
        self.device, self.host = (BlockPool(pool, BLOCK_BYTES, SLABS) for pool in self.slabs)
        self.lane = CopyLane("bench")
        random = np.random.default_rng(0)
        count = self.device.capacity
        self.here, self.there = (random.permutation(pool.allocate(count, SLABS)) for pool in (self.device, self.host))
        for pool in (self.device, self.host):
            pool.view()[:] = 1

    def move(self, blocks: int, out: bool) -> None:
        """One request through the lane, in one call."""
        into, to, source, of = self.ends(blocks, out)
        self.lane.copy_blocks(into.address, source.address, BLOCK_BYTES, to, of)
        self.lane.synchronize()

    def plain(self, blocks: int, out: bool) -> None:
        """memcpy of the same blocks."""
        into, to, source, of = self.ends(blocks, out)
        for a, b in zip(to.tolist(), of.tolist(), strict=True):
            ctypes.memmove(into.address + a * BLOCK_BYTES, source.address + b * BLOCK_BYTES, BLOCK_BYTES)

    def layered(self, blocks: int) -> None:
        """The same bytes as a layer-major cache has them: a piece per block and layer."""
        into, to, source, of = self.ends(blocks, True)
        stride = self.device.capacity * np.arange(LAYERS, dtype=np.int32)[:, None]
        pieces = [np.ascontiguousarray((stride + ids).ravel().astype(np.int32)) for ids in (to, of)]
        self.lane.copy_blocks(into.address, source.address, LAYER_BYTES, *pieces)
        self.lane.synchronize()

    def ends(self, blocks: int, out: bool) -> tuple[BlockPool, np.ndarray, BlockPool, np.ndarray]:
        here, there = self.here[:blocks], self.there[:blocks]
        return (self.host, there, self.device, here) if out else (self.device, here, self.host, there)

    def close(self) -> None:
        for thing in (self.lane, self.device, self.host, *self.slabs):
            thing.close()


def copies(tiers: Tiers, tokens: int, out: bool) -> Row:
    """Rate of a request's copy beside memcpy's, the median of pairs."""
    blocks = tokens // TOKENS
    pairs = [
        (seconds(lambda: tiers.move(blocks, out)), seconds(lambda: tiers.plain(blocks, out))) for _ in range(ROUNDS * 4)
    ]
    ours, plain = (statistics.median(times) for times in zip(*pairs, strict=True))
    nbytes = blocks * BLOCK_BYTES / 1e9
    way = "out" if out else "in"
    return Row(
        f"KV {way}, a request of {tokens} tokens (limit: memcpy)", nbytes / ours, "GB/s", nbytes / plain, ">=", 0.85
    )


def attention(cache: torch.Tensor, layer: Callable[[torch.Tensor, int], torch.Tensor], tables: torch.Tensor) -> float:
    """Seconds to attend over all layers: the median of rounds."""
    queries = torch.randn(len(tables), HEADS, 1, DIM)

    def step() -> None:
        for number in range(LAYERS):
            blocks = layer(cache, number)[tables.ravel()].view(len(tables), -1, 2, TOKENS, HEADS, DIM)
            keys, values = blocks.permute(2, 0, 4, 1, 3, 5).reshape(2, len(tables), HEADS, -1, DIM).unbind(0)
            torch.nn.functional.scaled_dot_product_attention(queries, keys, values)

    return statistics.median(seconds(step) for _ in range(ROUNDS))


def layouts(tiers: Tiers) -> list[Row]:
    """Copy and attention of both layouts, in one run."""
    torch.set_num_threads(1)
    blocks, batch = 512, 8
    block_major = torch.randn(blocks, LAYERS, 2, TOKENS, HEADS, DIM)
    layer_major = block_major.transpose(0, 1).contiguous()
    tables = torch.randperm(blocks)[: batch * 32].view(batch, 32)
    slow = attention(layer_major, lambda cache, number: cache[number], tables)
    ours = attention(block_major, lambda cache, number: cache[:, number], tables)
    whole = statistics.median(seconds(lambda: tiers.move(31, True)) for _ in range(ROUNDS * 2))
    pieces = statistics.median(seconds(lambda: tiers.layered(31)) for _ in range(ROUNDS * 2))
    return [
        Row("attention at batch 8 x 512 tokens, block-major", ours * 1e3, "ms"),
        Row("attention at batch 8 x 512 tokens, layer-major", slow * 1e3, "ms"),
        Row("copy of 496 tokens, block-major", whole * 1e3, "ms"),
        Row("copy of 496 tokens, layer-major", pieces * 1e3, "ms"),
    ]


def main() -> int:
    tiers = Tiers(Path("/dev/shm") / f"aegaeon-bench-{os.getpid()}")
    try:
        rows = [copies(tiers, tokens, out) for tokens in (64, 512, 2048) for out in (True, False)]
        return 0 if report("kv_copies", rows + layouts(tiers)) else 1
    finally:
        tiers.close()


if __name__ == "__main__":
    sys.exit(main())
