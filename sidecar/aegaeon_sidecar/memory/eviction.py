"""Eviction of cached blocks when memory is needed: the least valuable first, by slab or by block.

Pure functions over the state of pools and indices; `Tier` drops the blocks that they return. A block's value:
PrefixIndex.value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from aegaeon_native import BlockPool
from aegaeon_sidecar.memory.prefix import PrefixIndex

Blocks = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Shape:
    """The blocks of one KV shape and the index of what they hold."""

    pool: BlockPool
    index: PrefixIndex


def least_blocks(shape: Shape, blocks: Blocks, count: int, now_s: float) -> Blocks:
    """`count` of these blocks, the least worth first; all of them where there are fewer."""
    order: Blocks = blocks[np.argsort(shape.index.value(blocks, now_s), kind="stable")]
    return order[:count]


def least_slabs(
    shapes: Mapping[str, Shape], slab_bytes: int, count: int, now_s: float, most: float = inf, least: int = 0
) -> dict[str, Blocks]:
    """The blocks to drop, by shape, so that `count` slabs are free again, or as many as contain only cached blocks.

    `most`: slabs whose blocks are worth that much together, or more, stay. `least`: none where fewer slabs may go.
    """
    worth = [(value, name, at) for name, shape in shapes.items() for at, value in _worth(shape, slab_bytes, now_s)]
    cheap = sorted(each for each in worth if each[0] < most)[:count]
    chosen: dict[str, list[int]] = {}
    for _, name, at in cheap if len(cheap) >= least else ():
        chosen.setdefault(name, []).append(at)
    return {name: _over(shapes[name].pool, slab_bytes, positions) for name, positions in chosen.items()}


def _worth(shape: Shape, slab_bytes: int, now_s: float) -> list[tuple[int, float]]:
    """(position, what its blocks are worth together) of the slabs in which there is nothing but cached blocks."""
    positions = shape.pool.cached_positions()
    if not positions.size:
        return []
    cached = shape.pool.cached()
    value = shape.index.value(cached, now_s)
    first, last = _edges(shape.pool, slab_bytes, cached)
    total = np.zeros(int(last.max()) + 1)
    for further in range(int((last - first).max()) + 1):
        touched = first + further <= last
        total += np.bincount((first + further)[touched], value[touched], total.size)
    return list(zip(positions.tolist(), total[positions].tolist(), strict=True))


def _over(pool: BlockPool, slab_bytes: int, positions: list[int]) -> Blocks:
    """The cached blocks that touch any of these positions."""
    cached = pool.cached()
    first, last = _edges(pool, slab_bytes, cached)
    chosen = np.array(sorted(positions))
    over: Blocks = cached[np.searchsorted(chosen, first, "left") < np.searchsorted(chosen, last, "right")]
    return over


def _edges(pool: BlockPool, slab_bytes: int, blocks: Blocks) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and the last position that each block touches."""
    start = blocks.astype(np.int64) * pool.block_bytes
    return start // slab_bytes, (start + pool.block_bytes - 1) // slab_bytes
