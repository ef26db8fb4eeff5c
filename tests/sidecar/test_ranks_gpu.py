"""Copies of an engine of two GPUs, on the double of the driver: each has its part of weights and blocks."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
from sidecar.driver_double import DriverDouble

from aegaeon_native import BlockPool, EventTable, NativeError, Range
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.domain.program import Lane
from aegaeon_sidecar.engine.state import Queued
from aegaeon_sidecar.memory.copier import Copier, await_copy
from aegaeon_sidecar.memory.gpu import device_pool, host_pool
from aegaeon_sidecar.memory.segments import segment_files, segment_path
from aegaeon_sidecar.weights.cache import HostCache

SLAB = 2 << 20
BLOCK = 96 << 10  # some cross the border of a slab
INVALID_VALUE = 1


def test_weights_and_blocks_reach_the_memory_of_each_rank(folder: Path, driver: DriverDouble) -> None:
    """With slabs, streams or contexts of the first GPU for both, copies of the second are refused, or take its memory.

    Pages locked for the first alone (without CU_MEMHOSTREGISTER_PORTABLE) are pageable ones to the second.
    """
    gpus = (driver.gpu, driver.other)
    driver.late()
    device = device_pool(gpus, "device", SLAB, 6)
    host = host_pool(gpus, segment_files(segment_path(folder, "a", "1"), 2), SLAB, 3)
    assert driver.locked == 2, "the host tier's file of each rank"
    copier = Copier("test", EventTable.private(8), gpus)
    random = np.random.default_rng(0)

    part = SLAB + 4096
    image = HostCache(folder, 2 * part, driver.gpu).obtain(
        "image", 2 * part, lambda file: str(os.pwrite(file, random.bytes(2 * part), 0))
    )
    assert image.lock_next(driver.gpu, 2 * part)
    assert driver.other.free_bytes == driver.other.total_bytes - 6 * SLAB
    weights, unload = Range(device, 2), Queued(1, Lane.WEIGHTS, (), pb.Unload(), 0)
    weights.map(0, device.take(2)[::-1])
    copier.copy_image(unload, weights, image.address, part, 0, part)
    copier.finish()
    for rank, address in enumerate(weights.addresses):
        assert ctypes.string_at(address, part) == image.bytes[rank * part : (rank + 1) * part].tobytes()

    here, there = BlockPool(device, BLOCK, 4), BlockPool(host, BLOCK, 3)
    to, of = here.allocate(30, 4), there.allocate(30, 3)
    for rank in range(2):
        there.view(rank)[: 30 * BLOCK] = random.integers(0, 256, size=30 * BLOCK, dtype=np.uint8)
    await_copy(copier.begin(here, to, there, of))
    for rank, address in enumerate(here.addresses):
        assert ctypes.string_at(address, 30 * BLOCK) == there.view(rank)[: 30 * BLOCK].tobytes()

    assert driver.pageable_bytes == 0
    copier.close()
    weights.close()
    image.close()
    for pool in (here, there, device, host):
        pool.close()


def test_when_the_copy_of_one_rank_fails_those_of_the_others_are_waited_for(folder: Path, driver: DriverDouble) -> None:
    """After the failure the slabs are given back: a copy that is still under way lands in the next owner's memory."""
    gpus = (driver.gpu, driver.other)
    device, events = device_pool(gpus, "device", SLAB, 2), EventTable.private(8)
    copier, gate = Copier("test", events, gpus), events.event()
    image = HostCache(folder, 2 * SLAB).obtain(
        "image", 2 * SLAB, lambda file: str(os.posix_fallocate(file, 0, 2 * SLAB))
    )
    weights, load = Range(device, 1), Queued(1, Lane.WEIGHTS, (), pb.Load(), 0)
    weights.map(0, device.take(1))
    copier._lanes[1].wait(gate)
    driver.fail("cuMemcpyAsync", INVALID_VALUE)
    copier.copy_image(load, weights, image.address, SLAB, 0, SLAB)
    with ThreadPoolExecutor(1) as threads:
        over = threads.submit(copier.finish)
        assert not wait((over,), 0.3).done, "the second rank's copy has not begun"
        gate.set()
        with pytest.raises(NativeError, match=r"CUDA error 1\b"):
            over.result(20)
    copier.finish()
    copier.close()
    weights.close()
    image.close()
    device.close()
