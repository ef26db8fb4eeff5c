"""Copies, timed on this machine with the serving code: memory to memory, weights, KV blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aegaeon_cli.calibration.timing import median_seconds

if TYPE_CHECKING:
    from aegaeon_native import CudaDevice
    from aegaeon_sidecar.models.placement import Layout

Points = list[tuple[int, float]]  # (bytes, seconds)

_MEMCPY_BYTES = 64 << 20
MOST_BYTES = 1 << 30  # of a model's weights that are copied; more gives the same rate
_PARTS = (0.25, 0.5, 0.75, 1.0)  # of the weights
_BLOCKS = (4, 16, 64, 256)  # of a request's KV
_FEW_ROUNDS = 5  # of a large copy
_ROUNDS = 25  # at least: copies of small models take less than whatever else interrupts them
_IN_A_ROW = 8  # copies of a load beside steps: longer than several of those


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one model: weights from the host cache into device slabs, KV blocks out."""

    load: Points
    kv: Points


def memcpy_bytes_per_s(rounds: int = 5) -> float:
    """The rate at which one thread copies from memory to memory."""
    source, target = np.ones(_MEMCPY_BYTES, np.uint8), np.zeros(_MEMCPY_BYTES, np.uint8)
    return _MEMCPY_BYTES / median_seconds(lambda: np.copyto(target, source), rounds)


def side_by_side(rounds: int = 5, gpu: CudaDevice | None = None) -> float:
    """The slowdown of a copy to the device by a simultaneous copy in the opposite direction, each on a lane of its own:
    1 with independent paths, 2 on a shared one. `gpu`: None: the device tier is host memory, too."""
    from aegaeon_native import CopyLane

    with _tiers(_MEMCPY_BYTES, 2, gpu) as (device, host), ExitStack() as stack:
        lanes = [CopyLane(f"aegaeon-calibrate-{i}", device=gpu) for i in range(2)]
        for lane in lanes:
            stack.callback(lane.close)
        ways = (device, host), (host + _MEMCPY_BYTES, device + _MEMCPY_BYTES)

        def copy(count: int) -> float:
            begun = time.perf_counter()
            for lane, (target, source) in zip(lanes[:count], ways, strict=False):
                lane.copy(target, source, _MEMCPY_BYTES)
            for lane in lanes[:count]:
                lane.synchronize()
            return time.perf_counter() - begun

        # The fastest of several: an interruption can only make a copy slower.
        taken = [(copy(1), copy(2)) for _ in range(max(rounds, _FEW_ROUNDS))]
        return min(both for _, both in taken) / min(single for single, _ in taken)


def measure_copies(layout: Layout, slab_bytes: int, rounds: int, gpu: CudaDevice | None = None) -> Copies:
    """Time one model's copies over a native lane, from the host tier's shared memory into slabs of the device tier."""
    from aegaeon_native import CopyLane

    weights = min(layout.weight_bytes, MOST_BYTES)
    blocks, often = max(_BLOCKS), max(rounds, _ROUNDS)
    room = max(weights, blocks * layout.kv_block_bytes)
    with _tiers(slab_bytes, -(-room // slab_bytes), gpu) as (device, host), ExitStack() as stack:
        lane = CopyLane("aegaeon-calibrate", device=gpu)
        stack.callback(lane.close)

        def load(nbytes: int) -> None:
            lane.copy(device, host, nbytes)
            lane.synchronize()

        def kv(count: int) -> None:
            order = np.random.default_rng(0).permutation(blocks)[:count].astype(np.int32)
            lane.copy_blocks(host, device, layout.kv_block_bytes, order, order)
            lane.synchronize()

        return Copies(
            [(size, median_seconds(partial(load, size), often)) for size in (int(weights * p) for p in _PARTS)],
            [(n * layout.kv_block_bytes, median_seconds(partial(kv, n), often)) for n in _BLOCKS],
        )


def stall_s_per_byte(
    step: Callable[[], object], nbytes: int, slab_bytes: int, loads: int, gpu: CudaDevice | None = None
) -> float:
    """Seconds by which each byte of a load delays the steps of another model beside it; 0: not at all.

    A step's transfers wait for the copy engine that the load uses. `step`: runs one or several steps.
    """
    from aegaeon_native import CopyLane

    late_s = 0.0
    with _tiers(slab_bytes, -(-nbytes // slab_bytes), gpu) as (device, host), ExitStack() as stack:
        lane = CopyLane("aegaeon-calibrate", device=gpu)
        stack.callback(lane.close)
        alone_s = median_seconds(step, _ROUNDS)
        for _ in range(loads):
            for _ in range(_IN_A_ROW):
                lane.copy(device, host, nbytes)
            while lane.pending:
                late_s += median_seconds(step, 0) - alone_s
            lane.synchronize()
    return max(late_s, 0.0) / (loads * _IN_A_ROW * nbytes)


@contextmanager
def _tiers(slab_bytes: int, slabs: int, gpu: CudaDevice | None) -> Iterator[tuple[int, int]]:
    """The addresses of a mapped range of the device tier and of the host tier; freed at the end."""
    from aegaeon_native import Range
    from aegaeon_sidecar.memory.gpu import device_pool, host_pool

    name = f"aegaeon-calibrate-{os.getpid()}"
    with ExitStack() as stack:
        host = host_pool((gpu,), [Path(f"/dev/shm/{name}")], slab_bytes, slabs)
        stack.callback(host.close)
        device = device_pool((gpu,), name, slab_bytes, slabs)
        stack.callback(device.close)
        place = Range(device, slabs)
        stack.callback(place.close)
        place.map(0, device.take(slabs))
        yield place.address, host.address
