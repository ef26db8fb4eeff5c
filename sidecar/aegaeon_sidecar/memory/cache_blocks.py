"""The value of keeping cached blocks, and bounds of it for slabs, which change with the blocks alone, not with time.

A block is worth weight / age: its weight is uses x seconds to compute it again. 1 / age is convex in the time of the
last use, so blocks are worth at least all their weight at its mean time (Jensen's inequality), and at most what the
chord from the oldest to the newest has there. Eviction then computes the value of few blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aegaeon_native import BlockPool

Blocks = NDArray[np.int32]
Positions = NDArray[np.int64]
Noted = NDArray[np.float64]
"""of blocks, a row each: their uses, seconds to compute them again, time of the last use"""
Values = NDArray[np.float64]
_LEAST_AGE_S = 1e-3
_ROUNDING = 1e-5  # by which bounds are wider than computed: ages of milliseconds are differences of large times


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most that the blocks over each of some positions may be worth together."""

    least: Values
    most: Values


class BlockValues:
    """Uses, costs and last uses of a pool's published blocks. Guarded by the engine's lock."""

    def __init__(self, pool: BlockPool, slab_bytes: int) -> None:
        self._block_bytes, self._slab_bytes = pool.block_bytes, slab_bytes
        self._used_s = np.zeros(pool.capacity)
        self._uses = np.zeros(pool.capacity)  # 0 unless it is published
        self._lost_s = np.zeros(pool.capacity)  # seconds to compute it and all that was seen to follow it
        positions = -(-pool.capacity * pool.block_bytes // slab_bytes)
        self._stale = np.zeros(positions, dtype=np.bool_)  # a block over it has changed since the following were summed
        self._weight, self._oldest_s, self._mean_s, self._newest_s = np.zeros((4, positions))

    # -- blocks -----------------------------------------------------------------------------------------------------

    def add(self, blocks: Blocks) -> None:
        """Blocks were published."""
        self._uses[blocks], self._lost_s[blocks], self._used_s[blocks] = 1.0, 0.0, 0.0
        self._changed(blocks)

    def drop(self, blocks: Blocks) -> None:
        """Blocks are published no longer."""
        self._uses[blocks] = 0.0
        self._changed(blocks)

    def used(self, blocks: Blocks, now_s: float, block_s: float, *, again: bool) -> None:
        """See PrefixIndex."""
        self._used_s[blocks] = now_s
        self._uses[blocks] += np.logical_and(again, self._uses[blocks] > 0.0)
        following = np.arange(len(blocks), 0, -1) * block_s
        self._lost_s[blocks] = np.maximum(self._lost_s[blocks], following)
        self._changed(blocks)

    def value(self, blocks: Blocks | Positions, now_s: float) -> Values:
        """See PrefixIndex."""
        worth: Values = self._uses[blocks] * self._lost_s[blocks] / _ages_s(self._used_s[blocks], now_s)
        return worth

    def noted(self, blocks: Blocks) -> Noted:
        """See PrefixIndex."""
        return np.stack((self._uses[blocks], self._lost_s[blocks], self._used_s[blocks]))

    def note(self, blocks: Blocks, noted: Noted) -> None:
        """See PrefixIndex."""
        published = self._uses[blocks] > 0.0
        blocks, noted = blocks[published], noted[:, published]
        self._uses[blocks], self._lost_s[blocks], self._used_s[blocks] = np.maximum(self.noted(blocks), noted)
        self._changed(blocks)

    @property
    def published(self) -> Blocks:
        """All blocks with a value."""
        return np.flatnonzero(self._uses).astype(np.int32)

    # -- slabs ------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Sum the blocks over positions where any has changed."""
        positions = np.flatnonzero(self._stale)
        if not positions.size:
            return
        blocks, published = self._over(positions)
        weight = np.where(published, self._uses[blocks] * self._lost_s[blocks], 0.0)
        used_s, counts, total = self._used_s[blocks], weight > 0.0, _sum(weight)
        oldest_s = np.where(counts, used_s, np.inf).min(axis=0)
        oldest_s[total == 0.0] = 0.0
        behind_s = np.where(counts, used_s - oldest_s, 0.0)
        self._weight[positions], self._oldest_s[positions] = total, oldest_s
        self._mean_s[positions] = oldest_s + _sum(weight * behind_s) / np.where(total > 0.0, total, 1.0)
        self._newest_s[positions] = oldest_s + behind_s.max(axis=0)
        self._stale[positions] = False

    def bounds(self, positions: Positions, now_s: float) -> Bounds:
        """Bounds of `over`, without a look at the blocks themselves."""
        self.settle()
        weight, newest_s = self._weight[positions], self._newest_s[positions]
        oldest_s, mean_s = self._oldest_s[positions], self._mean_s[positions]
        low, mean, high = (1.0 / _ages_s(used_s, now_s) for used_s in (oldest_s, mean_s, newest_s))
        convex = newest_s <= now_s - _LEAST_AGE_S
        span_s = np.where(newest_s > oldest_s, newest_s - oldest_s, 1.0)
        chord = np.where(convex, low + (high - low) * ((mean_s - oldest_s) / span_s), high)
        least = weight * np.where(convex, mean, low)
        return Bounds(least * (1.0 - _ROUNDING), weight * chord * (1.0 + _ROUNDING))

    def over(self, positions: Positions, now_s: float) -> Values:
        """The value of all published blocks that touch each position, together."""
        blocks, published = self._over(positions)
        return _sum(np.where(published, self.value(blocks, now_s), 0.0))

    def published_over(self, positions: Positions) -> Blocks:
        """The published blocks that touch any of these positions."""
        blocks, published = self._over(positions)
        ids = np.sort(blocks[published])  # np.unique imports numpy.ma at its first call, with the lock held
        return ids[np.diff(ids, prepend=-1) > 0].astype(np.int32)

    def _over(self, positions: Positions) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Blocks by position (columns), and which of these touch it and are published."""
        first = positions * self._slab_bytes // self._block_bytes
        last = np.minimum(((positions + 1) * self._slab_bytes - 1) // self._block_bytes, self._uses.size - 1)
        blocks = first + np.arange(int((last - first).max(initial=0)) + 1)[:, np.newaxis]
        touches = blocks <= last
        blocks = np.minimum(blocks, last)
        return blocks, touches & (self._uses[blocks] > 0.0)

    def _changed(self, blocks: Blocks) -> None:
        first = blocks.astype(np.int64) * self._block_bytes // self._slab_bytes
        last = ((blocks.astype(np.int64) + 1) * self._block_bytes - 1) // self._slab_bytes
        for further in range(int((last - first).max(initial=0)) + 1):
            self._stale[np.minimum(first + further, last)] = True

    def check(self) -> bool:
        """Sums are those of the blocks; for tests."""
        self.settle()
        before = np.stack((self._weight, self._oldest_s, self._mean_s, self._newest_s))
        self._stale[:] = True
        self.settle()
        return bool((before == np.stack((self._weight, self._oldest_s, self._mean_s, self._newest_s))).all())


def _sum(columns: Values) -> Values:
    """The sum of each column, in the order of its rows however many there are: equal slabs are worth the same."""
    total: Values = np.add.accumulate(columns, axis=0)[-1]
    return total


def _ages_s(used_s: Values, now_s: float) -> Values:
    ages_s: Values = np.maximum(now_s - used_s, _LEAST_AGE_S)
    return ages_s
