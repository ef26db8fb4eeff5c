"""CuPy, which shares no code with the engine, as an independent witness: attributes, mapped memory, a kernel by NVRTC.

It is no part of an engine: where it is not installed (`pip install "aegaeon[gpu]"`) these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.gpu_day.driver import Driver

from aegaeon_native import BlockPool, CopyLane, CudaDevice, Range, SlabPool
from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.paged import Paged
from aegaeon_sidecar.models.layout import KvShape

cupy: Any = pytest.importorskip("cupy", reason="no CuPy is here: pip install 'aegaeon[gpu]'")
pytestmark = pytest.mark.gpu
SLAB = 2 << 20
KERNEL = Path(__file__).with_name("reference_attention.cu")
KNOWN_TO_BOTH = (16, 38, 40, 75, 76, 78, 88, 91, 97, 99)  # the runtime numbers these as the driver does
LENGTHS = [1, 0, 16, 33, 300, 2047]


def test_the_driver_says_of_the_device_what_cupy_reads(gpu: CudaDevice) -> None:
    driver = Driver("libcuda.so.1", 0)
    runtime = cupy.cuda.runtime
    expected = {number: runtime.deviceGetAttribute(number, 0) for number in KNOWN_TO_BOTH}
    assert {number: driver.attribute(number) for number in KNOWN_TO_BOTH} == expected
    properties = runtime.getDeviceProperties(0)
    assert (gpu.name, gpu.total_bytes) == (properties["name"].decode(), properties["totalGlobalMem"])
    assert driver.version == runtime.driverGetVersion()


def test_bytes_that_a_lane_copied_into_slabs_are_those_that_cupy_reads_there(gpu: CudaDevice) -> None:
    source = np.random.default_rng(0).integers(0, 256, size=4 * SLAB, dtype=np.uint8)
    pool, lane = SlabPool.cuda(gpu, SLAB, 4), CopyLane("test", device=gpu)
    place = Range(pool, 4)
    place.map(0, pool.take(4)[::-1])
    lane.copy(place.address, source.ctypes.data, source.nbytes)
    assert lane.synchronize()
    memory = cupy.cuda.UnownedMemory(place.address, source.nbytes, place)
    seen = cupy.ndarray(source.shape, dtype=np.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
    assert np.array_equal(seen.get(), source)
    for used in (lane, place, pool):
        used.close()


@pytest.mark.parametrize("window", [None, 20])
def test_attention_over_blocks_is_that_of_a_kernel_compiled_by_nvrtc(gpu: CudaDevice, window: int | None) -> None:
    shape, heads = KvShape(2, 16, 2, 32, "float32"), 6
    pool = SlabPool.cuda(gpu, SLAB, 4)
    memory = BlockPool(pool, shape.block_bytes, 4)
    cache, width = KvCache(shape, memory.dlpack()), -(-max(LENGTHS) // 16)
    tables = torch.zeros(len(LENGTHS), width, dtype=torch.int32)
    for row, length in enumerate(LENGTHS):
        blocks = memory.allocate(-(-length // 16), 4)
        tables[row, : len(blocks)] = torch.from_numpy(blocks)
        cache.blocks[torch.from_numpy(blocks).long().cuda()] = torch.randn(len(blocks), cache.blocks.shape[1]).cuda()
    lengths, tables = torch.tensor(LENGTHS, dtype=torch.int32).cuda(), tables.cuda()
    queries, keys, values = torch.randn(len(LENGTHS), heads + 4, 32).cuda().split((heads, 2, 2), dim=1)
    computed = Paged(cache, lengths, tables, 2048).attend(1, window, queries, keys, values)
    expected = reference(cache, tables, lengths, queries.contiguous(), 1, window)
    torch.testing.assert_close(computed, expected, rtol=1e-4, atol=1e-5)
    memory.close()
    pool.close()


def reference(
    cache: KvCache, tables: torch.Tensor, lengths: torch.Tensor, queries: torch.Tensor, layer: int, window: int | None
) -> torch.Tensor:
    """What the reference kernel computes of the same memory, once torch's stream is through."""
    shape, (rows, heads, dim) = cache.shape, queries.shape
    out = torch.empty(rows, heads * dim, device=queries.device)
    torch.cuda.synchronize()
    attend = cupy.RawKernel(KERNEL.read_text("utf-8"), "attend", options=("--std=c++17",))
    pointers = (queries.data_ptr(), cache.flat.data_ptr(), tables.data_ptr(), np.int32(tables.shape[1]))
    sizes = (layer, shape.layers, shape.block_tokens, shape.kv_heads, heads // shape.kv_heads, dim, window or 1 << 30)
    arguments = (*pointers, lengths.data_ptr(), out.data_ptr(), *map(np.int32, sizes), np.float64(dim**-0.5))
    attend((rows, heads), (dim,), arguments)
    cupy.cuda.Device().synchronize()
    return out
