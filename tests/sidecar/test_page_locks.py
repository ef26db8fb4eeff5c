"""Page-locked memory of a sidecar with a GPU, on a double of the driver: images and segments, while they are there."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sidecar.driver_double import READ_ONLY_LOCKS, DriverDouble

from aegaeon_native import BlockPool, CopyLane, Range, SlabPool
from aegaeon_proto.engine.catalog import DirectorySource, ModelSpec
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.memory.leases import Lending
from aegaeon_sidecar.memory.segments import Attachments, leases_path, segment_path
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.image import Image
from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.weights.pins import lock_ahead
from aegaeon_sidecar.weights.table import ModelTable

MB = 1 << 20
PATIENCE_S = 10.0


def put(cache: HostCache, name: str, pieces: int = 1) -> Image:
    def fill(file: int) -> str:
        os.pwrite(file, np.random.default_rng(ord(name)).bytes(pieces * MB), 0)
        return name

    return cache.obtain(name, pieces * MB, fill)


def await_locks(driver: DriverDouble, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while driver.locked != count and time.monotonic() < deadline:
        time.sleep(0.001)
    assert driver.locked == count


@pytest.fixture
def cache(folder: Path, driver: DriverDouble) -> Iterator[HostCache]:
    """With room for two images of 1 MiB."""
    made = HostCache(folder, 2 * MB, driver.gpu)
    made.page_locks.start()
    yield made
    made.page_locks.stop()


def test_evicted_images_do_not_stay_page_locked(cache: HostCache, driver: DriverDouble) -> None:
    images = []
    for number, name in enumerate("abcdef"):
        images.append(put(cache, name))
        images[-1].lock_soon()
        await_locks(driver, min(number + 1, 2))
        images[-1].unpin()
    assert not images[0].pin()
    for image in images:
        image.close()


def test_images_evicted_by_another_sidecar_do_not_stay_page_locked(
    folder: Path, cache: HostCache, driver: DriverDouble
) -> None:
    another = HostCache(folder, 2 * MB)
    evicted, pinned = put(cache, "a"), put(cache, "b")
    for image in (evicted, pinned):
        image.lock_soon()
    await_locks(driver, 2)
    evicted.unpin()
    other = put(another, "c")
    assert driver.locked == 2
    cache.page_locks.unlock_evicted()
    assert driver.locked == 1
    assert not evicted.lock_next(driver.gpu, MB), "it is not locked again"
    for image in (evicted, pinned, other):
        image.close()


def test_only_what_queued_loads_name_is_locked_by_another_thread_which_needs_no_lock_of_the_engine(
    folder: Path, driver: DriverDouble
) -> None:
    cache, table = HostCache(folder, 3 * MB, driver.gpu), ModelTable(Monitor())
    for name in "abc":
        model = table.models[name] = Model(ModelSpec(name, DirectorySource("")))
        model.image, model.pinned = put(cache, name), True
    with table.monitor.changed:
        for _ in range(3):
            lock_ahead(table, {"b", "gone"})
        assert driver.locked == 0, "the thread does not run yet"
        cache.page_locks.start()
        await_locks(driver, 1)
    cache.page_locks.stop()
    for model in table.models.values():
        model.let_go()


def test_a_copy_of_an_image_that_is_locked_in_part_is_whole_and_nothing_is_locked_beside_it(
    folder: Path, driver: DriverDouble
) -> None:
    """Across the end of what is locked, and the borders of its pieces, the driver refuses a copy."""
    cache = HostCache(folder, 6 * MB, driver.gpu)
    image, pool = put(cache, "a", pieces=6), SlabPool.cuda(driver.gpu, 2 * MB, 3)
    weights, lane = Range(pool, 3), CopyLane("weights", device=driver.gpu)
    weights.map(0, pool.take(3))

    def copied_bytes() -> bytes:
        ctypes.memset(weights.address, 0, 6 * MB)
        lane.copy(weights.address, image.address, 6 * MB)
        assert lane.synchronize(60.0)
        return ctypes.string_at(weights.address, 6 * MB)

    for locked in range(1, 7):
        assert image.lock_next(driver.gpu, MB)
        with image.copied():
            assert not image.lock_next(driver.gpu, MB)
            before = driver.pageable_bytes
            assert copied_bytes() == image.bytes.tobytes()
            assert (driver.locked, driver.pageable_bytes - before) == (locked, (6 - locked) * MB)
    assert not image.lock_next(driver.gpu, MB)
    image.close()
    assert driver.locked == 0
    for used in (lane, weights, pool):
        used.close()


def permissions(name: str) -> set[str]:
    """As which files of this name are mapped."""
    return {line.split()[1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(name)}


@pytest.mark.parametrize(("read_only", "mapped"), [(1, "r--s"), (0, "rw-s")])
def test_images_are_mapped_as_the_gpu_can_lock_them(
    folder: Path, driver: DriverDouble, read_only: int, mapped: str
) -> None:
    driver.has(READ_ONLY_LOCKS, read_only)
    image = put(HostCache(folder, 2 * MB, driver.gpu), "a")
    assert image.lock_next(driver.gpu, MB)
    assert permissions("a.weights") == {mapped}
    image.close()


def test_an_image_whose_lock_is_refused_is_read_all_the_same(folder: Path, driver: DriverDouble) -> None:
    cache = HostCache(folder, 2 * MB, driver.gpu)
    image = put(cache, "a", pieces=2)
    assert image.lock_next(driver.gpu, MB)
    driver.refuse_lock()
    assert not image.lock_next(driver.gpu, MB)
    assert not image.lock_next(driver.gpu, MB), "it is not tried again"
    assert image.bytes.tobytes() == np.random.default_rng(ord("a")).bytes(2 * MB)
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
