"""An engine's GPUs: allocation of their memory and copies to and from it (docs/engine-memory.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aegaeon_native import CudaDevice, SlabPool, cuda_uuid
from aegaeon_sidecar.domain.ranks import devices_of

Gpus = tuple[CudaDevice | None, ...]  # by rank; None: a CPU


def open_gpu(device: str) -> CudaDevice | None:
    """The GPU that "cuda:N" names, None for "cpu". Raises NativeError naming what this machine lacks."""
    kind, _, ordinal = device.partition(":")
    if kind != "cuda":
        return None
    return CudaDevice(int(ordinal))


def open_gpus(device: str, ranks: int) -> Gpus:
    """Open the GPUs of `ranks` ranks, `device` being the first one's. Raises NativeError saying what this machine
    lacks."""
    return tuple(open_gpu(each) for each in devices_of(device, ranks))


def uuids_of(device: str, ranks: int) -> list[str]:
    """The UUIDs of the ranks' GPUs, without creating contexts; none for a CPU. Raises NativeError."""
    ordinals = (each.partition(":")[2] for each in devices_of(device, ranks))
    return [cuda_uuid(int(ordinal)) for ordinal in ordinals if ordinal]


def make_of(gpus: Gpus) -> str:
    """The make of the devices: "cpu", or the GPU's name and memory; "x N" for several ranks."""
    makes = ["cpu" if gpu is None else f"{gpu.name}, {gpu.total_bytes / 2**30:.0f} GiB" for gpu in gpus]
    make = makes[0] if len(set(makes)) == 1 else " + ".join(makes)
    return make if len(makes) == 1 else f"{make} x {len(makes)}"


def device_pool(gpus: Gpus, name: str, slab_bytes: int, slabs: int) -> SlabPool:
    """The device tier's slabs: so many on each rank. Raises NativeError when they are not to be had."""
    return SlabPool.gang([_pool(gpu, name, slab_bytes, slabs) for gpu in gpus])


def host_pool(gpus: Gpus, files: Sequence[Path], slab_bytes: int, slabs: int) -> SlabPool:
    """The host tier's, in a file for each rank. Raises NativeError when they are not to be had."""
    ranks = zip(files, gpus, strict=True)
    return SlabPool.gang([SlabPool.shared(str(file), slab_bytes, slabs, gpu) for file, gpu in ranks])


def _pool(gpu: CudaDevice | None, name: str, slab_bytes: int, slabs: int) -> SlabPool:
    if gpu is None:
        return SlabPool.private(name, slab_bytes, slabs)
    return SlabPool.cuda(gpu, slab_bytes, slabs)
