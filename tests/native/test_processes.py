"""Events and pools between two real processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon_native import BlockPool, EventTable, NativeError, SlabPool

PEER = Path(__file__).with_name("peer.py")


@pytest.fixture
def folder() -> Iterator[Path]:
    root = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="aegaeon-test-", dir=root) as path:
        yield Path(path)
        assert list(Path(path).iterdir()) == []


def peer(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(PEER), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def answer(*arguments: object) -> str:
    with peer(*arguments) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out


@pytest.fixture
def table(folder: Path) -> Iterator[EventTable]:
    made = EventTable.create(str(folder / "events"), 4)
    yield made
    made.close()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_process_waits_for_an_event_of_another_until_it_is_set_or_dropped(
    folder: Path, table: EventTable, dropped: bool
) -> None:
    events = [table.event()]
    with peer("wait", folder / "events", *events[0].handle) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting False\n"
        if dropped:
            events.clear()
        else:
            events[0].set()
        assert process.communicate(timeout=60)[0] == "True\n"
    events.clear()
    assert table.in_use == 0


def test_a_process_sets_an_event_of_another(folder: Path, table: EventTable) -> None:
    event = table.event()
    assert not event.wait(0.0)
    answer("set", folder / "events", *event.handle)
    assert event.wait(30)


def test_blocks_are_read_by_another_process_through_their_handle(folder: Path) -> None:
    segment = str(folder / "host")
    pool = SlabPool.shared(segment, 65536, 8)
    blocks = BlockPool(pool, 50000, 8)
    held = blocks.allocate(6, 8)
    rows = blocks.view().reshape(blocks.capacity, 50000)
    blocks.release(held[1:4])
    wanted = [0, 5, 4]
    for value, block in enumerate(wanted, start=1):
        rows[block] = value
    assert -1 in blocks.slabs
    sums = answer("read", segment, 50000, ",".join(map(str, wanted)), ",".join(map(str, blocks.slabs)))
    assert sums == "50000,100000,150000"
    blocks.close()
    pool.close()


def test_the_segment_of_a_killed_process_is_replaced_and_that_of_a_living_one_is_not(folder: Path) -> None:
    path = str(folder / "host")
    with peer("hold", path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(NativeError, match="a living process holds this file"):
            SlabPool.shared(path, 65536, 2)
        process.kill()
        process.wait(timeout=60)
    assert Path(path).exists()
    pool = SlabPool.shared(path, 65536, 2)
    assert pool.free == 2
    pool.close()


def test_a_file_system_that_is_too_small_is_an_error_at_creation(folder: Path) -> None:
    with pytest.raises(NativeError, match=r"its file system has \d+ free; enlarge it"):
        SlabPool.shared(str(folder / "huge"), 1 << 30, 1 << 14)


def test_attaching_to_something_else_is_an_error(folder: Path) -> None:
    other = folder / "other"
    other.write_bytes(b"x" * 5000)
    with pytest.raises(NativeError, match="not a file of this kind"):
        SlabPool.attach(str(other))
    with pytest.raises(NativeError, match="No such file"):
        EventTable.attach(str(folder / "missing"))
    other.unlink()
