"""Page-locked memory of a sidecar with a GPU, on a double of the driver: images and segments, while they are there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sidecar.driver_double import READ_ONLY_LOCKS, DriverDouble

from aegaeon_native import BlockPool, CopyLane, SlabPool
from aegaeon_sidecar.memory.leases import Lending
from aegaeon_sidecar.memory.segments import Attachments, leases_path, segment_path
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.image import Image

MB = 1 << 20


def put(cache: HostCache, name: str) -> Image:
    def fill(file: int) -> str:
        os.pwrite(file, name.encode() * MB, 0)
        return name

    return cache.obtain(name, MB, fill)


def test_evicted_images_do_not_stay_page_locked(folder: Path, driver: DriverDouble) -> None:
    cache = HostCache(folder, 2 * MB, driver.gpu)
    images = []
    for name in "abcdef":
        images.append(put(cache, name))
        assert driver.locked <= 2
        images[-1].unpin()
    assert not images[0].pin()
    for image in images:
        image.close()


def test_images_evicted_by_another_sidecar_do_not_stay_page_locked(folder: Path, driver: DriverDouble) -> None:
    ours, theirs = HostCache(folder, 2 * MB, driver.gpu), HostCache(folder, 2 * MB)
    evicted, pinned = put(ours, "a"), put(ours, "b")
    evicted.unpin()
    other = put(theirs, "c")
    assert driver.locked == 2
    ours.unlock_evicted()
    assert driver.locked == 1
    for image in (evicted, pinned, other):
        image.close()


def permissions(name: str) -> set[str]:
    """As which files of this name are mapped."""
    return {line.split()[1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(name)}


@pytest.mark.parametrize(("read_only", "mapped"), [(1, "r--s"), (0, "rw-s")])
def test_images_are_mapped_as_the_gpu_can_lock_them(
    folder: Path, driver: DriverDouble, read_only: int, mapped: str
) -> None:
    driver.has(READ_ONLY_LOCKS, read_only)
    cache = HostCache(folder, 2 * MB, driver.gpu)
    image = put(cache, "a")
    assert driver.locked == 1
    assert permissions("a.weights") == {mapped}
    image.close()


def test_an_image_whose_lock_is_refused_is_read_all_the_same(folder: Path, driver: DriverDouble) -> None:
    cache = HostCache(folder, 2 * MB, driver.gpu)
    driver.refuse_lock()
    image = put(cache, "a")
    assert driver.locked == 0
    assert image.bytes[0] == ord("a")
    image.close()


@dataclass(frozen=True)
class Segment:
    """Another sidecar's, of four slabs, with a lease on some of its blocks."""

    path: Path
    source: SlabPool
    lease: tuple[int, int]


@pytest.fixture
def segment(folder: Path) -> Iterator[Segment]:
    path = segment_path(folder, "a", "life")
    lending, source = Lending(leases_path(path)), SlabPool.shared(str(path), MB, 4)
    lease = lending.lend()
    yield Segment(path, source, lease.handle)
    source.close()
    lending.close()


@pytest.mark.parametrize("read_only", [1, 0])
def test_a_segment_is_page_locked_while_it_is_attached_whatever_locks_the_gpu_has(
    folder: Path, segment: Segment, driver: DriverDouble, read_only: int
) -> None:
    """Attached for reading alone where the GPU cannot lock such pages, every adopted block is a pageable copy."""
    driver.has(READ_ONLY_LOCKS, read_only)
    attachments = Attachments(folder, (driver.gpu,))
    blocks, lane = BlockPool(SlabPool.cuda(driver.gpu, 2 * MB, 1), MB, 1), CopyLane("kv-in", device=driver.gpu)
    into = blocks.allocate(2, 1)
    with attachments.reading(segment.path.name, *segment.lease) as pool:
        assert (pool.total, driver.locked) == (4, 1)
        ctypes.memset(segment.source.address + MB, 7, MB)
        lane.copy_blocks(blocks.address, pool.address, MB, into, np.array([1, 0], dtype=np.int32))
        assert lane.synchronize(60.0)
    assert ctypes.string_at(blocks.address + int(into[0]) * MB, 2) == b"\7\7"
    assert driver.pageable_bytes == 0
    lane.close()
    segment.source.close()
    attachments.drop_removed()


def test_a_segment_that_cannot_be_page_locked_is_read_all_the_same(
    folder: Path, segment: Segment, driver: DriverDouble
) -> None:
    attachments = Attachments(folder, (driver.gpu,))
    driver.refuse_lock()
    with attachments.reading(segment.path.name, *segment.lease) as pool:
        assert (pool.total, driver.locked) == (4, 0)
    attachments.close()
