"""The questions to the driver, asked of its double: attributes, memory, page locks, and what a refusal says."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.gpu_day.driver import ATTRIBUTES, Driver, DriverError
from sidecar.driver_double import READ_ONLY_LOCKS, DriverDouble


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> tuple[DriverDouble, Driver]:
    folder = tmp_path_factory.mktemp("driver")
    return DriverDouble(folder), Driver(str(folder / "libfake_cuda.so"), 0)


def test_attributes_are_those_of_the_device(double: tuple[DriverDouble, Driver]) -> None:
    device, driver = double
    assert {driver.attribute(number) for number in ATTRIBUTES} >= {1}
    device.has(READ_ONLY_LOCKS, 0)
    assert driver.attribute(READ_ONLY_LOCKS) == 0
    device.has(READ_ONLY_LOCKS, 1)
    assert driver.attribute(READ_ONLY_LOCKS) == 1


def test_pages_are_locked_for_the_length_of_the_question(double: tuple[DriverDouble, Driver]) -> None:
    device, driver = double
    for writable in (True, False):
        assert driver.lock_s(Path("/dev/shm"), 1 << 20, writable) > 0
    assert device.locked == 0


def test_a_refusal_names_the_call(double: tuple[DriverDouble, Driver]) -> None:
    device, driver = double
    device.refuse_lock()
    with pytest.raises(DriverError, match=r"cuMemHostRegister_v2.*801"):
        driver.lock_s(Path("/dev/shm"), 1 << 20, writable=True)
