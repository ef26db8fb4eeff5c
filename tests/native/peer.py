"""The other process of the cross-process tests: does what its arguments say and answers on its standard output."""

from __future__ import annotations

import sys

import numpy as np

from aegaeon_native import CopyLane, EventTable, Range, SlabPool


def wait(path: str, slot: int, generation: int) -> None:
    event = EventTable.attach(path).open(slot, generation)
    sys.stdout.write(f"waiting {event.done}\n")
    sys.stdout.flush()
    sys.stdout.write(f"{event.wait(30)}\n")


def set_event(path: str, slot: int, generation: int) -> None:
    EventTable.attach(path).open(slot, generation).set()


def read(segment: str, block_bytes: int, blocks: str, slabs: str) -> None:
    """Map the handle's slabs end to end and print the sum of every block's bytes, copied out by a lane."""
    pool = SlabPool.attach(segment)
    layout = [int(slab) for slab in slabs.split(",")]
    place = Range(pool, len(layout))
    place.map(0, layout)
    source = np.array([int(block) for block in blocks.split(",")], dtype=np.int32)
    target = np.zeros((len(source), block_bytes), dtype=np.uint8)
    lane = CopyLane("adopt")
    order = np.arange(len(source), dtype=np.int32)
    lane.copy_blocks(target.ctypes.data, place.address, block_bytes, order, source)
    lane.synchronize()
    lane.close()
    sys.stdout.write(",".join(str(int(row.sum(dtype=np.int64))) for row in target))


def hold(path: str) -> None:
    """Create a pool and die without closing it."""
    pool = SlabPool.shared(path, 65536, 2)
    pool.take(1)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    command, path, *rest = sys.argv[1:]
    if command == "wait":
        wait(path, int(rest[0]), int(rest[1]))
    elif command == "set":
        set_event(path, int(rest[0]), int(rest[1]))
    elif command == "read":
        read(path, int(rest[0]), rest[1], rest[2])
    elif command == "hold":
        hold(path)
