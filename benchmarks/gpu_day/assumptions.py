"""Stage `assumptions`: what the engine takes for granted of the driver, of torch's libraries and of the machine, asked.

Each answer is a figure; a bar marks what the code relies on. A question that fails ends no other one: a library's own
fault is an answer, too. For a CPU the driver is the tests' double of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from benchmarks.gpu_day import libraries
from benchmarks.gpu_day.driver import Driver, DriverError
from benchmarks.gpu_day.probes import open_driver
from benchmarks.gpu_day.stage import begin, parser_of, status
from benchmarks.gpu_day.where import Where
from benchmarks.gpu_rig import busy, median_s
from benchmarks.report import Figures, Row

Question = Callable[[], Iterator[Row]]
_KERNEL_MS = 100.0


def main() -> int:
    where, figures = begin("assumptions", parser_of(__doc__).parse_args())
    driver = open_driver(where)
    failed = 0
    for question in _questions(where, driver):
        failed += _ask(figures, question)
    figures.add(Row("questions that ended with an error", failed, "questions", 0, "<="))
    return status(figures, where.small)


def _questions(where: Where, driver: Driver) -> list[Question]:
    device, small = where.device, where.small
    return [
        lambda: unmapped_addresses(driver, small),
        lambda: mapping_beside_a_kernel(driver, device, small),
        lambda: locking_beside_a_kernel(driver, device, small),
        lambda: copies_of_unlocked_memory(device, small),
        machine_memory,
        lambda: libraries.first_chunks(device, small),
        lambda: libraries.windows(device),
        lambda: libraries.small_kernels(device, small),
        lambda: libraries.gathers(device, small),
        lambda: libraries.products(device, small, where.work),
    ]


def _ask(figures: Figures, question: Question) -> bool:
    """Its answers; whether it ended with an error."""
    try:
        for row in question():
            figures.add(row)
    except (DriverError, OSError, RuntimeError, ValueError, subprocess.CalledProcessError):  # torch's are RuntimeErrors
        traceback.print_exc()
        return True
    return False


def unmapped_addresses(driver: Driver, small: bool) -> Iterator[Row]:
    """Triton's launcher refuses a pointer that is not accessible: the engine passes KV ranges as integers."""
    space = driver.address_space(8, driver.granularity(recommended=True))
    space.map(5)
    space.allow(5)
    yield Row("a mapped slab is accessible", float(space.is_accessible(5)), "(1: yes)", 1)
    yield Row("the unmapped beginning of its range is accessible", float(space.is_accessible(0)), "(1: yes)")
    space.unmap(5)
    space.close()


def mapping_beside_a_kernel(driver: Driver, device: str, small: bool) -> Iterator[Row]:
    """Whether calls that map and unmap wait for kernels that run: then an engine's lock is held for a step's length."""
    space = driver.address_space(16, 2 << 20 if small else 32 << 20)
    for what, kernel_ms in (("idle", 0.0), (f"beside a kernel of {_KERNEL_MS:.0f} ms", _KERNEL_MS)):
        for name, call in (("map", space.map), ("allow access", space.allow), ("unmap", space.unmap)):
            times = []
            for slab in range(8):
                wait = busy(device, kernel_ms)
                times.append(median_s(lambda call=call, slab=slab: call(slab), 1, waits=False))
                wait()
            yield Row(f"{name} a slab, {what}, median", 1e3 * sorted(times)[4], "ms")
            yield Row(f"{name} a slab, {what}, longest", 1e3 * max(times), "ms")
    space.close()


def locking_beside_a_kernel(driver: Driver, device: str, small: bool) -> Iterator[Row]:
    """What page locks of shared memory take, and whether they wait for a kernel."""
    nbytes = 4 << 20 if small else 1 << 30
    for what, kernel_ms in (("idle", 0.0), ("beside a kernel of 300 ms", 300.0)):
        wait = busy(device, kernel_ms)
        seconds = driver.lock_s(Path("/dev/shm"), nbytes, writable=True)
        wait()
        yield Row(f"page lock of shared memory, first touched by it, {what}", 1e3 * seconds * 1e9 / nbytes, "ms/GB")
    seconds = driver.lock_s(Path("/dev/shm"), nbytes, writable=True, written=True)
    yield Row("page lock of shared memory with pages behind it", 1e3 * seconds * 1e9 / nbytes, "ms/GB")


def copies_of_unlocked_memory(device: str, small: bool) -> Iterator[Row]:
    """A model's first load beside the next ones: no load waits for the lock of its image's pages."""
    nbytes = 4 << 20 if small else 1 << 30
    host, target = torch.ones(nbytes, dtype=torch.uint8), torch.empty(nbytes, dtype=torch.uint8, device=device)
    yield Row("copy of memory that is not locked", 1e3 * median_s(lambda: target.copy_(host)) * 1e9 / nbytes, "ms/GB")


def machine_memory() -> Iterator[Row]:
    """Of the machine, and of /dev/shm."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    shared = os.statvfs("/dev/shm")
    yield Row("memory of the machine", kib["MemTotal"] / 2**20, "GiB")
    yield Row("memory that is free", kib["MemAvailable"] / 2**20, "GiB")
    yield Row("/dev/shm, free", shared.f_bavail * shared.f_frsize / 2**30, "GiB")


if __name__ == "__main__":
    sys.exit(main())
