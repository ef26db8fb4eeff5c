"""After everything is closed or dropped, the process has what it had before: handles, mappings, files, threads."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import numpy as np

from aegaeon_native import BlockPool, CopyLane, EventTable, Range, SlabPool

SHM = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


def ours() -> tuple[int, int, int, list[str]]:
    """Open handles, mappings of our memory or reserved addresses, threads, and files in shared memory."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = sum("memfd:leak" in line or "aegaeon-leak" in line or "---p" in line for line in maps)
    files = sorted(path.name for path in SHM.glob(f"aegaeon-leak-{os.getpid()}*"))
    return len(os.listdir("/proc/self/fd")), mapped, len(os.listdir("/proc/self/task")), files


def use_everything(close: bool) -> None:
    path = SHM / f"aegaeon-leak-{os.getpid()}"
    private, shared = SlabPool.private("leak", 65536, 8), SlabPool.shared(f"{path}.slabs", 65536, 8)
    events, place = EventTable.create(f"{path}.events", 8), Range(private, 4)
    device, host = BlockPool(private, 5000, 4), BlockPool(shared, 5000, 4)
    attached, lane = SlabPool.attach(f"{path}.slabs"), CopyLane("leak")
    place.map(1, private.take(2))
    here, there = device.allocate(9, 4), host.allocate(9, 4)
    done = events.event()
    lane.copy_blocks(host.address, device.address, 5000, there, here, tag=1)
    lane.record(done)
    assert done.wait(30)
    device.keep(here[:4])
    device.release(here)
    assert np.array_equal(host.view()[:45000], np.zeros(45000, np.uint8))
    if close:
        for thing in (lane, device, host, place, attached, private, shared, events):
            thing.close()


def test_nothing_is_left_after_close_or_after_dropping_everything() -> None:
    use_everything(close=True)
    before = ours()
    for round_number in range(20):
        use_everything(close=round_number % 2 == 0)
    after = ours()
    assert after == before
    assert after[3] == []
