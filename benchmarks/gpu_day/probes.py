"""Stage `probes`: what the device and its driver can do of what the engine relies on, and how fast the link is.

Attributes and locks are asked of the driver itself; for a CPU, of the tests' double of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks.gpu_day.driver import ATTRIBUTES, Driver, DriverError
from benchmarks.gpu_day.stage import begin, parser_of, status
from benchmarks.gpu_day.where import Where
from benchmarks.gpu_rig import median_s
from benchmarks.report import Figures, Row

_GB = 1e9


def main() -> int:
    where, figures = begin("probes", parser_of(__doc__).parse_args())
    driver = open_driver(where)
    _attributes(figures, driver)
    _locks(figures, driver, where.work, 1 << 20 if where.small else 1 << 30)
    for name, bytes_per_s in link(where.device, 1 << 24 if where.small else 1 << 30):
        figures.add(Row(name, bytes_per_s / _GB, "GB/s"))
    return status(figures, where.small)


def open_driver(where: Where) -> Driver:
    """The device's; for a CPU the tests' double."""
    library = "libcuda.so.1" if where.device != "cpu" else _double(where.work)
    return Driver(library, int(where.device.partition(":")[2] or 0))


def _double(folder: Path) -> str:
    from sidecar.driver_double import DriverDouble  # of the tests

    DriverDouble(folder)
    return str(folder / "libfake_cuda.so")


def _attributes(figures: Figures, driver: Driver) -> None:
    """An attribute that the driver does not know is left out, which the report shows."""
    figures.add(Row(f"device: {driver.name}", driver.total_bytes / _GB, "GB"))
    figures.add(Row("driver version", driver.version, "(1000 x major + 10 x minor)"))
    for number, name in ATTRIBUTES.items():
        try:
            figures.add(Row(f"attribute {name}", driver.attribute(number), ""))
        except DriverError as error:
            print(f"attribute {name}: {error}", flush=True)
    for name, recommended in (("least", False), ("recommended", True)):
        figures.add(Row(f"granularity of mapped memory, {name}", driver.granularity(recommended) / 2**20, "MiB"))


def _locks(figures: Figures, driver: Driver, disk: Path, nbytes: int) -> None:
    """Whether mappings can be page-locked, and what a lock of so many bytes takes. 1: they can."""
    for what, folder, writable in (
        ("shared memory", Path("/dev/shm"), True),
        ("shared memory, read-only", Path("/dev/shm"), False),
        ("a file on a disk", disk, True),
    ):
        try:
            seconds = driver.lock_s(folder, nbytes, writable)
        except DriverError as error:
            print(f"page lock of {what}: {error}", flush=True)
            figures.add(Row(f"page lock of {what}", 0, "(1: possible)"))
        else:
            figures.add(Row(f"page lock of {what}", 1, "(1: possible)"))
            figures.add(Row(f"page lock of {what}, {nbytes >> 20} MiB", seconds * 1e3, "ms"))


def link(device: str, nbytes: int) -> list[tuple[str, float]]:
    """Bytes a second of large copies between page-locked memory and the device: each way alone, and both at once."""
    pinned = device != "cpu"
    hosts = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
    devices = [torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(2)]
    into = _on_a_stream(device, lambda: devices[0].copy_(hosts[0], non_blocking=True))
    out = _on_a_stream(device, lambda: hosts[1].copy_(devices[1], non_blocking=True))

    def both() -> None:
        into()
        out()

    return [
        ("link, in", nbytes / median_s(into)),
        ("link, out", nbytes / median_s(out)),
        ("link, both ways together", 2 * nbytes / median_s(both)),
    ]


def _on_a_stream(device: str, action: Callable[[], object]) -> Callable[[], None]:
    """The action, launched on a stream of its own."""
    if device == "cpu":
        return lambda: (action(), None)[1]
    stream = torch.cuda.Stream(device)

    def launch() -> None:
        with torch.cuda.stream(stream):
            action()

    return launch


if __name__ == "__main__":
    sys.exit(main())
