"""Memory beside the slabs is reserved before they are cut, counted, and held against what is reserved."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from sidecar.driver_double import DriverDouble
from sidecar.rig import config

from aegaeon_native import SlabPool
from aegaeon_proto.engine.reports import OutsideSlabs
from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.domain.errors import SettingsError
from aegaeon_sidecar.memory.outside import Outside, outside_bytes

MIB = 1 << 20


def test_memory_of_arrays_counts_and_memory_of_slabs_does_not() -> None:
    before = outside_bytes()
    array = np.ones(64 * MIB, dtype=np.uint8)
    counted = outside_bytes() - before
    pool = SlabPool.private("t", MIB, 64)
    for slab in range(64):
        pool.prefault(slab)
    with_slabs = outside_bytes() - before
    pool.close()
    assert 60 * MIB < counted < 80 * MIB
    assert abs(with_slabs - counted) < 16 * MIB
    assert array[0] == 1


class Gpu:
    """A GPU's memory as its driver tells it."""

    def __init__(self, whole: int, used: int) -> None:
        self.whole, self.used = whole, used

    def __call__(self) -> tuple[int, int]:
        return self.whole - self.used, self.whole


def test_of_gpus_all_that_is_used_beside_the_slabs_counts_on_the_one_that_has_most() -> None:
    one, other = Gpu(80 * MIB, used=62 * MIB), Gpu(80 * MIB, used=65 * MIB)
    outside = Outside(6 * MIB, slab_bytes=60 * MIB, gpus=(one, other))
    assert outside.last == OutsideSlabs(6 * MIB)
    assert outside.sample() == OutsideSlabs(6 * MIB, 5 * MIB, 5 * MIB)
    other.used = 60 * MIB
    assert outside.sample() == OutsideSlabs(6 * MIB, 2 * MIB, 5 * MIB)


def test_the_log_says_once_that_more_is_used_than_is_reserved(caplog: pytest.LogCaptureFixture) -> None:
    gpu = Gpu(80 * MIB, used=66 * MIB)
    outside = Outside(6 * MIB, slab_bytes=60 * MIB, gpus=(gpu,))
    with caplog.at_level(logging.WARNING):
        outside.sample()
        assert not caplog.messages
        gpu.used += 1
        outside.sample()
        outside.sample()
    (message,) = caplog.messages
    assert "raise memory.outside_bytes" in message


def settings(folder: Path, device_bytes: int | None, adapters: int = 0, device: str = "cuda:0") -> SidecarConfig:
    memory = config(folder)["memory"] | {"slab_bytes": MIB, "outside_bytes": 10 * MIB, "device_bytes": device_bytes}
    room = {"device_bytes": adapters} if adapters else None
    return SidecarConfig.model_validate(config(folder, memory=memory, device=device, adapters=room))


@pytest.mark.parametrize(
    ("device_bytes", "adapters", "free", "slabs"),
    [
        (60 * MIB, 0, 70 * MIB, 60),
        (60 * MIB, 4 * MIB, 70 * MIB, 56),
        (None, 0, 70 * MIB, 60),
        (None, 4 * MIB, 70 * MIB, 56),
        (60 * MIB, 0, None, 60),
    ],
)
def test_slabs_are_cut_from_what_the_reservations_leave(
    tmp_path: Path, device_bytes: int | None, adapters: int, free: int | None, slabs: int
) -> None:
    made = settings(tmp_path, device_bytes, adapters)
    assert made.slab_count(free) == slabs
    assert made.reserved_bytes == 10 * MIB + adapters


def test_what_is_reserved_is_still_free_on_a_gpu_when_its_slabs_are_cut(tmp_path: Path, driver: DriverDouble) -> None:
    """With slabs cut from all that is free (slab_count without reserved_bytes) nothing is left for steps."""
    driver.take(300 * MIB)  # other processes, and torch's context
    slab, memory = 2 * MIB, config(tmp_path)["memory"]
    memory |= {"slab_bytes": slab, "outside_bytes": 200 * MIB, "device_bytes": None}
    made = SidecarConfig.model_validate(config(tmp_path, memory=memory, device="cuda:0"))
    slabs = SlabPool.cuda(driver.gpu, slab, made.slab_count(driver.gpu.free_bytes))
    assert driver.gpu.free_bytes < 202 * MIB
    activations = SlabPool.cuda(driver.gpu, slab, 100)
    for pool in (slabs, activations):
        pool.close()


@pytest.mark.parametrize(
    ("device_bytes", "adapters", "free", "reason"),
    [
        (60 * MIB, 0, 70 * MIB - 1, "are 73400320 together; lower one"),
        (None, 0, 9 * MIB, "lower one"),
        (None, 4 * MIB, 14 * MIB, "leaves no slab"),
    ],
)
def test_a_gpu_with_too_little_free_memory_is_refused_with_the_numbers(
    tmp_path: Path, device_bytes: int | None, adapters: int, free: int, reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason) as refused:
        settings(tmp_path, device_bytes, adapters).slab_count(free)
    assert str(free) in str(refused.value) or "bytes for slabs and adapters" in str(refused.value)


def test_a_cpu_needs_a_size_since_its_memory_is_not_the_engines_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device_bytes is needed on a CPU"):
        settings(tmp_path, None, device="cpu")
