"""KV blocks over slabs: how fast blocks are allocated and freed from Python, and how much of a pool is lost to borders.

Fragmentation is the share of the pool's bytes that are neither data (tokens' KV) nor free slabs, averaged over a
replay of ShareGPT lengths on six KV shapes that fill 80 % of the pool. Every size is scaled down alike, which
changes no share: the replay stands for 40 GiB of KV memory in slabs of 32 MiB, blocks of 16 tokens, bfloat16.
"""

from __future__ import annotations

import csv
import random
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import numpy as np
from benchmarks.report import Row, report
from numpy.typing import NDArray

from aegaeon_native import BlockPool, SlabPool

LENGTHS = Path(__file__).parent / "data" / "sharegpt_pairs.csv"
SCALE = 128
POOL_BYTES = (40 << 30) // SCALE
SLAB_MIB = 32
BLOCK_TOKENS = 16
FILL = 0.8
# Bytes of KV per token: 2 (K and V) x layers x KV heads x head size x 2 bytes.
SHAPES = {
    "Llama-2-7B": 2 * 32 * 32 * 128 * 2,
    "Llama-2-13B": 2 * 40 * 40 * 128 * 2,
    "Llama-3.1-8B": 2 * 32 * 8 * 128 * 2,
    "Yi-1.5-9B": 2 * 48 * 4 * 128 * 2,
    "Qwen2.5-7B": 2 * 28 * 4 * 128 * 2,
    "Qwen2.5-14B": 2 * 48 * 8 * 128 * 2,
}


@dataclass
class Held:
    """A running sequence: its pool, bytes per token, tokens so far, tokens at its end, and its blocks."""

    pool: BlockPool
    token_bytes: int
    tokens: int
    last: int
    blocks: list[NDArray[np.int32]] = field(default_factory=list)

    def grow(self, tokens: int) -> None:
        """Allocate what the sequence needs to hold `tokens` tokens."""
        have = -(-self.tokens // BLOCK_TOKENS) if self.blocks else 0
        need = -(-tokens // BLOCK_TOKENS) - have
        if need > 0:
            self.blocks.append(self.pool.allocate(need, need + self.pool.slabs_for(need)))
        self.tokens = tokens

    def end(self) -> None:
        self.pool.release(np.concatenate(self.blocks))


class Replay:
    """Sequences that grow by a block's worth of tokens a step; new ones come in while the pool is below FILL."""

    def __init__(self, slab_mib: int) -> None:
        slab_bytes = (slab_mib << 20) // SCALE
        self.slabs = SlabPool.private("bench", slab_bytes, POOL_BYTES // slab_bytes)
        sizes = [size // SCALE for size in SHAPES.values()]
        self.pools = [(BlockPool(self.slabs, size * BLOCK_TOKENS, self.slabs.total), size) for size in sizes]
        self.running: list[Held] = []
        self.waiting = deque(zip(lengths(), cycle(self.pools), strict=False))

    @property
    def data(self) -> int:
        return sum(held.tokens * held.token_bytes for held in self.running)

    def admit(self) -> bool:
        """Admit what fits under the fill, in order; False when the trace has ended."""
        data = self.data
        while self.waiting:
            (prompt, output), (pool, size) = self.waiting[0]
            data += prompt * size
            if data > FILL * POOL_BYTES:
                return True
            self.waiting.popleft()
            held = Held(pool, size, 0, prompt + output)
            held.grow(prompt)
            self.running.append(held)
        return False

    def step(self) -> None:
        going = []
        for held in self.running:
            if held.tokens >= held.last:
                held.end()
                continue
            held.grow(min(held.tokens + BLOCK_TOKENS, held.last))
            going.append(held)
        self.running = going

    def fragmentation(self) -> float:
        mapped = (self.slabs.total - self.slabs.free) * self.slabs.slab_bytes
        return (mapped - self.data) / POOL_BYTES

    def close(self) -> None:
        for pool, _ in self.pools:
            pool.check()
            pool.close()
        self.slabs.check()
        self.slabs.close()


def lengths() -> list[tuple[int, int]]:
    with LENGTHS.open() as file:
        pairs = [(max(1, int(row["input_len"])), max(1, int(row["output_len"]))) for row in csv.DictReader(file)]
    random.Random(0).shuffle(pairs)
    return pairs


def replay(slab_mib: int) -> tuple[float, float]:
    """Mean fragmentation and mean fill of the pool, from the first time it is full to the end of the trace."""
    run = Replay(slab_mib)
    lost, filled = [], []
    while run.admit():
        lost.append(run.fragmentation())
        filled.append(run.data / POOL_BYTES)
        run.step()
    run.close()
    return float(np.mean(lost)), float(np.mean(filled))


def pair_rate(batch: int | None, seconds: float = 0.4) -> float:
    """Blocks allocated and freed per second, in batches of `batch`, or of 4 to 16 (None), beside held neighbours."""
    slabs = SlabPool.private("rate", 2 << 20, 16)
    pool = BlockPool(slabs, 16384, 16)
    pool.release(pool.allocate(1000, 16)[::3])
    sizes = [batch] if batch else [random.Random(size).randint(4, 16) for size in range(64)]
    begin, blocks = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for size in sizes:
            pool.release(pool.allocate(size, 0))
        blocks += sum(sizes)
    rate = blocks / (time.perf_counter() - begin)
    pool.close()
    slabs.close()
    return rate


def main() -> int:
    lost, filled = replay(SLAB_MIB)
    rows = [
        Row("alloc+free, batches of 4 to 16 blocks", max(pair_rate(None) for _ in range(3)), "blocks/s", 2e6),
        Row("alloc+free, one block a call", max(pair_rate(1) for _ in range(3)), "blocks/s"),
        Row(f"fragmentation, six shapes, {SLAB_MIB} MiB slabs", lost, "of the pool", 0.10, "<="),
        Row("fill of the pool in that replay", filled, "of the pool"),
    ]
    return 0 if report("slabs", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
