"""Slabs, ranges, blocks and lanes on a GPU behave as they do on a CPU, and torch sees the same bytes."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

from aegaeon_native import BlockPool, CopyLane, CudaDevice, EventTable, NativeError, Range, SlabPool
from aegaeon_sidecar.weights.cache import HostCache

pytestmark = pytest.mark.gpu
SLAB = 2 << 20


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a tmpfs: kernels pin no pages of files on a disk for long."""
    with tempfile.TemporaryDirectory(prefix="aegaeon-test-", dir="/dev/shm") as made:
        yield Path(made)


@pytest.fixture
def host(gpu: CudaDevice, folder: Path) -> Iterator[SlabPool]:
    pool = SlabPool.shared(str(folder / "host"), SLAB, 16, gpu)
    yield pool
    pool.close()


@pytest.fixture
def lane(gpu: CudaDevice) -> Iterator[CopyLane]:
    lane = CopyLane("test", device=gpu)
    yield lane
    lane.close()


def test_a_tensor_over_a_range_stays_valid_over_remapping(gpu: CudaDevice) -> None:
    pool = SlabPool.cuda(gpu, SLAB, 4)
    place = Range(pool, 2)
    weights = from_dlpack(place.dlpack(256, SLAB)).view(torch.float32)
    assert weights.device == torch.device("cuda:0")
    first, second = pool.take(2), pool.take(2)
    place.map(0, first)
    weights.fill_(1.5)
    torch.cuda.synchronize()
    address = weights.data_ptr()
    assert place.unmap(0, 2) == first
    place.map(0, second)
    weights.fill_(2.5)
    torch.cuda.synchronize()
    place.unmap(0, 2)
    place.map(0, first)
    assert weights.data_ptr() == address == place.address + 256
    assert bool((weights == 1.5).all())
    pool.check()


def test_a_graph_reads_the_memory_mapped_at_its_addresses(gpu: CudaDevice) -> None:
    pool = SlabPool.cuda(gpu, SLAB, 2)
    place = Range(pool, 1)
    weights = from_dlpack(place.dlpack(0, SLAB)).view(torch.float32)
    one, other = pool.take(1), pool.take(1)
    total = torch.zeros((), device="cuda:0")
    place.map(0, one)
    weights.fill_(1.0)
    total.copy_(weights.sum())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total.copy_(weights.sum())
    graph.replay()
    torch.cuda.synchronize()
    assert float(total) == weights.numel()
    place.unmap(0, 1)
    place.map(0, other)
    weights.fill_(3.0)
    graph.replay()
    torch.cuda.synchronize()
    assert float(total) == 3 * weights.numel()


@pytest.mark.parametrize("block_bytes", [16 << 10, 100_000, 3 << 20])
def test_blocks_survive_swap_out_and_swap_in(gpu: CudaDevice, host: SlabPool, block_bytes: int) -> None:
    here, there = BlockPool(SlabPool.cuda(gpu, SLAB, 16), block_bytes, 16), BlockPool(host, block_bytes, 16)
    count = min(20, 16 * SLAB // block_bytes // 2)
    blocks, back, out = here.allocate(count, 16), here.allocate(count, 16), there.allocate(count, 16)
    data = from_dlpack(here.dlpack()).view(here.capacity, block_bytes)
    noise = torch.randint(0, 256, (count, block_bytes), dtype=torch.uint8, device="cuda:0")
    data[torch.from_numpy(blocks).long().cuda()] = noise
    torch.cuda.synchronize()
    lane = CopyLane("blocks", device=gpu)
    lane.copy_blocks(there.address, here.address, block_bytes, np.flip(out).copy(), blocks)
    lane.copy_blocks(here.address, there.address, block_bytes, back, np.flip(out).copy())
    lane.close()
    assert np.array_equal(there.view().reshape(there.capacity, -1)[np.flip(out)], noise.cpu().numpy())
    assert torch.equal(data[torch.from_numpy(back).long().cuda()], noise)


def test_an_event_is_set_after_its_copy(gpu: CudaDevice, host: SlabPool, lane: CopyLane) -> None:
    pool, events = SlabPool.cuda(gpu, SLAB, 16), EventTable.private(4)
    place, staged = Range(pool, 16), Range(host, 16)
    place.map(0, pool.take(16))
    staged.map(0, list(reversed(host.take(16))))
    staged.view(0, 16 * SLAB)[:] = np.arange(16 * SLAB, dtype=np.uint32).astype(np.uint8)
    done = events.event()
    lane.copy(place.address, staged.address, 16 * SLAB)
    lane.record(done)
    assert done.wait(30)
    seen = from_dlpack(place.dlpack(0, 16 * SLAB)).cpu().numpy()
    assert np.array_equal(seen, staged.view(0, 16 * SLAB))


def test_an_image_of_the_host_cache_is_pinned_and_copied_completely(
    gpu: CudaDevice, folder: Path, lane: CopyLane
) -> None:
    def fill(file: int) -> str:
        os.pwrite(file, np.arange(SLAB, dtype=np.uint32).astype(np.uint8).data, 0)
        return "content"

    image = HostCache(folder, 2 * SLAB, gpu).obtain("identity", SLAB, fill)
    assert image.lock_next(gpu, SLAB)
    with pytest.raises(NativeError, match="already"):
        gpu.lock_pages(image.address, SLAB)
    place = Range(pool := SlabPool.cuda(gpu, SLAB, 1), 1)
    place.map(0, pool.take(1))
    lane.copy(place.address, image.address, SLAB)
    lane.synchronize()
    assert np.array_equal(from_dlpack(place.dlpack(0, SLAB)).cpu().numpy(), np.arange(SLAB, dtype=np.uint32) % 256)
    image.close()


def test_a_segment_of_another_process_is_pinned_whichever_locks_the_gpu_has(
    gpu: CudaDevice, folder: Path, lane: CopyLane
) -> None:
    theirs = SlabPool.shared(str(folder / "theirs"), SLAB, 2)
    ctypes.memset(theirs.address + SLAB, 7, SLAB)
    ours = SlabPool.attach(str(folder / "theirs"), gpu)
    with pytest.raises(NativeError, match="already"):
        gpu.lock_pages(ours.address, SLAB)
    place = Range(pool := SlabPool.cuda(gpu, SLAB, 1), 1)
    place.map(0, pool.take(1))
    lane.copy(place.address, ours.address + SLAB, SLAB)
    back = np.zeros(SLAB, dtype=np.uint8)
    lane.copy(back.ctypes.data, place.address, SLAB)
    lane.synchronize()
    assert (back == 7).all()
    ours.close()
    theirs.close()


def test_memory_that_is_pinned_in_pieces_is_copied_over_their_border(gpu: CudaDevice, lane: CopyLane) -> None:
    piece = 256 << 20
    source = np.zeros(piece + 2 * SLAB, dtype=np.uint8)
    border = slice(piece - SLAB, piece + SLAB)
    source[border] = np.arange(2 * SLAB, dtype=np.uint32).astype(np.uint8)
    gpu.lock_pages(source.ctypes.data, source.nbytes)
    place = Range(pool := SlabPool.cuda(gpu, SLAB, 2), 2)
    place.map(0, pool.take(2))
    lane.copy(place.address, source.ctypes.data + piece - SLAB, 2 * SLAB)
    back = np.zeros(2 * SLAB, dtype=np.uint8)
    lane.copy(back.ctypes.data, place.address, 2 * SLAB)
    lane.synchronize()
    assert np.array_equal(back, source[border])
    gpu.unlock_pages(source.ctypes.data)


def test_a_cancelled_copy_is_reported_as_truncated_or_is_complete(gpu: CudaDevice, host: SlabPool) -> None:
    pool = SlabPool.cuda(gpu, SLAB, 16)
    place, lane = Range(pool, 16), CopyLane("cut", chunk_bytes=1 << 20, device=gpu)
    place.map(0, pool.take(16))
    for _ in range(50):
        lane.copy(place.address, host.address, 16 * SLAB, tag=1)
    lane.cancel(1)
    lane.synchronize()
    assert lane.cancelled(1) == (lane.bytes_copied < 50 * 16 * SLAB)
    lane.close()


def test_allocating_more_memory_than_exists_is_refused_with_a_sentence(gpu: CudaDevice) -> None:
    free = gpu.free_bytes
    with pytest.raises(NativeError, match="has room for"):
        SlabPool.cuda(gpu, 1 << 30, (gpu.total_bytes >> 30) + 1)
    assert gpu.free_bytes > free - (1 << 30)


def test_views_for_the_host_are_refused(gpu: CudaDevice) -> None:
    place = Range(SlabPool.cuda(gpu, SLAB, 1), 1)
    with pytest.raises(NativeError, match="dlpack"):
        place.view(0, 1)
