"""The GPU of an engine whose device is one: who allocates its memory and moves its bytes (docs/engine-memory.md)."""

from __future__ import annotations

from pathlib import Path

import aegaeon_native
from aegaeon_native import CudaDevice, SlabPool

KERNELS = Path(aegaeon_native.__file__).with_name("kernels.fatbin")


def open_gpu(device: str, kernels: Path = KERNELS) -> CudaDevice | None:
    """The GPU that "cuda:N" names, None for "cpu". Raises NativeError saying what this machine lacks.

    Without `kernels` (`make cuda` makes them) small blocks are moved by copies as well.
    """
    kind, _, ordinal = device.partition(":")
    if kind != "cuda":
        return None
    return CudaDevice(int(ordinal), kernels=kernels.read_bytes() if kernels.exists() else b"")


def device_pool(gpu: CudaDevice | None, name: str, slab_bytes: int, slabs: int) -> SlabPool:
    """The device tier's slabs. Raises NativeError when they are not to be had."""
    if gpu is None:
        return SlabPool.private(name, slab_bytes, slabs)
    return SlabPool.cuda(gpu, slab_bytes, slabs)
