"""Views of ranges stay valid while the memory behind them changes."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from aegaeon_native import BlockPool, NativeError, OutOfSlabs, Range, SlabPool

SLAB = 65536


def test_a_tensor_over_a_range_stays_valid_over_remapping() -> None:
    pool = SlabPool.private("remap", SLAB, 4)
    place = Range(pool, 2)
    weights = torch.from_numpy(place.view(256, SLAB)).view(torch.float32)
    first, second = pool.take(2), pool.take(2)
    place.map(0, first)
    weights.fill_(1.5)
    address = weights.data_ptr()
    assert place.unmap(0, 2) == first
    place.map(0, second)
    assert float(weights.sum()) == 0.0
    weights.fill_(2.5)
    place.unmap(0, 2)
    place.map(0, first)
    assert weights.data_ptr() == address == place.address + 256
    assert torch.equal(weights, torch.full_like(weights, 1.5))


def test_a_view_is_made_without_touching_memory_and_keeps_its_range_alive() -> None:
    pool = SlabPool.private("alive", SLAB, 1)
    place = Range(pool, 1)
    view = place.view(0, SLAB)
    place.map(0, pool.take(1))
    del place, pool
    gc.collect()
    view[:] = 7
    assert int(view.sum(dtype=np.int64)) == 7 * SLAB
    assert view.flags.writeable


def test_the_view_of_a_block_pool_is_writable_where_blocks_are_held() -> None:
    pool = BlockPool(SlabPool.private("blocks", SLAB, 2), 5000, 2)
    view = pool.view()
    assert view.shape == (pool.capacity * 5000,)
    rows = view.reshape(pool.capacity, 5000)
    blocks = pool.allocate(15, 2)
    rows[blocks] = np.arange(15, dtype=np.uint8)[:, None]
    assert (rows[14] == 14).all()
    del pool
    gc.collect()
    assert (rows[3] == 3).all()


def test_misuse_is_reported_and_changes_nothing() -> None:
    pool = SlabPool.private("misuse", SLAB, 4)
    place = Range(pool, 2)
    place.map(0, pool.take(1))
    with pytest.raises(NativeError, match="position 0 holds slab 0 already"):
        place.map(0, [1])
    with pytest.raises(NativeError, match="nothing is mapped at position 1"):
        place.unmap(0, 2)
    with pytest.raises(NativeError, match="of a range of 2 slabs"):
        place.map(1, [1, 2])
    with pytest.raises(NativeError, match="the range has"):
        place.view(SLAB, SLAB + 1)
    with pytest.raises(OutOfSlabs, match="4 slabs asked for, 3 of 4 free"):
        pool.take(4)
    with pytest.raises(NativeError, match="slab 2 is free already"):
        pool.give([0, 2])
    assert (place.mapped, pool.free) == (1, 3)
    pool.check()


def test_a_closed_range_refuses_maps() -> None:
    pool = SlabPool.private("closed", SLAB, 1)
    place = Range(pool, 1)
    place.close()
    place.close()
    with pytest.raises(NativeError, match="closed"):
        place.map(0, pool.take(1))


def test_a_slab_size_that_no_page_fits_is_refused() -> None:
    with pytest.raises(NativeError, match="multiple of the page size"):
        SlabPool.private("odd", 5000, 1)


def test_a_gang_maps_the_same_slabs_on_every_rank() -> None:
    pool = SlabPool.gang([SlabPool.private(f"rank-{rank}", SLAB, 4) for rank in range(3)])
    assert (pool.ranks, pool.total, pool.free) == (3, 4, 4)
    place, blocks = Range(pool, 2), BlockPool(pool, 5000, 4)
    slabs = pool.take(2)
    place.map(0, slabs)
    held = blocks.allocate(14, 2)  # more than a slab holds
    for rank in range(3):
        place.view(0, 2 * SLAB, rank)[:] = rank
        blocks.view(rank).reshape(-1, 5000)[held] = 10 + rank
    place.unmap(0, 2)
    place.map(0, slabs[::-1])
    for rank in range(3):
        assert (place.view(0, 2 * SLAB, rank) == rank).all()
        assert (blocks.view(rank).reshape(-1, 5000)[held] == 10 + rank).all()
        assert place.addresses[rank] == place.view(0, 1, rank).ctypes.data
    blocks.release(held)
    pool.give(place.unmap(0, 2))
    pool.check()
    blocks.check()
    assert pool.free == 4
    with pytest.raises(IndexError):
        place.view(0, 1, 3)


def test_a_gang_maps_on_all_ranks_or_on_none() -> None:
    first, second = SlabPool.private("first", SLAB, 2), SlabPool.private("second", SLAB, 2)
    pool = SlabPool.gang([first, second])
    place, slabs = Range(pool, 2), pool.take(2)
    second.close()  # its memory is gone
    with pytest.raises(NativeError, match="closed"):
        place.map(0, slabs)
    assert place.mapped == 0
    place.close()


def test_unequal_or_used_pools_cannot_form_a_gang() -> None:
    used = SlabPool.private("used", SLAB, 2)
    used.take(1)
    for other in (SlabPool.private("more", SLAB, 3), SlabPool.private("smaller", 4096, 2), used):
        with pytest.raises(NativeError, match="alike, and unused"):
            SlabPool.gang([SlabPool.private("one", SLAB, 2), other])
    with pytest.raises(NativeError, match="at least one"):
        SlabPool.gang([])
