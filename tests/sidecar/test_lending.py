"""Blocks that another sidecar reads are not used again before it has read them, whatever becomes of either."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aegaeon_native import NativeError
from aegaeon_sidecar.domain.errors import StaleError
from aegaeon_sidecar.memory.leases import SLOTS, Borrowing, Lending

READER = """
import sys
from pathlib import Path
from aegaeon_sidecar.memory.leases import Borrowing
with Borrowing(Path(sys.argv[1])).reading(int(sys.argv[2]), int(sys.argv[3])):
    print("reading", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a@1.leases"


@pytest.fixture
def lending(path: Path) -> Iterator[Lending]:
    made = Lending(path)
    yield made
    made.close()
    made.close()
    assert not path.exists()


def test_a_lent_block_without_readers_is_freed_at_once(lending: Lending) -> None:
    freed: list[str] = []
    lending.recall(lending.lend(), "s", [0, 1, 2], lambda: freed.append("blocks"))
    assert freed == ["blocks"]
    assert not list(lending.owned())


def test_a_block_being_read_is_freed_when_its_reader_releases_it(lending: Lending, path: Path) -> None:
    freed: list[str] = []
    borrowing, event, other = Borrowing(path), lending.lend(), lending.lend()
    with borrowing.reading(*event.handle):
        lending.recall(event, "s", [0, 1, 2], lambda: freed.append("blocks"))
        lending.recall(other, "s", [7], lambda: freed.append("others"))
        assert freed == ["others"]
        assert list(lending.owned()) == [("s", [0, 1, 2])]
        assert lending.reclaim() == 1
    assert lending.reclaim() == 0
    assert freed == ["others", "blocks"]
    borrowing.close()


def test_an_expired_lease_is_refused_even_if_its_slot_was_reused(lending: Lending, path: Path) -> None:
    borrowing, old = Borrowing(path), over(lending)
    with pytest.raises(StaleError, match="taken back"), borrowing.reading(*old):
        pytest.fail("it was readable")
    again = [lending.lend() for _ in range(SLOTS)]
    assert old[0] in [event.handle[0] for event in again]
    with pytest.raises(StaleError, match="taken back"), borrowing.reading(*old):
        pytest.fail("it was readable")
    borrowing.close()


def over(lending: Lending) -> tuple[int, int]:
    """The handle of a lease that is over."""
    event = lending.lend()
    lending.recall(event, "s", [7], lambda: None)
    return event.handle


@pytest.mark.parametrize("end", ["killed", "ended"])
def test_a_reader_that_dies_holds_nothing(lending: Lending, path: Path, end: str) -> None:
    freed: list[str] = []
    event = lending.lend()
    command = [sys.executable, "-c", READER, str(path), *map(str, event.handle)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        lending.recall(event, "s", [3, 4], lambda: freed.append("blocks"))
        assert lending.reclaim() == 1
        if end == "killed":
            reader.kill()
        reader.communicate(timeout=60)
    assert lending.reclaim() == 0
    assert freed == ["blocks"]


def test_a_full_table_is_reported(lending: Lending) -> None:
    kept = [lending.lend() for _ in range(SLOTS)]
    with pytest.raises(NativeError, match="all 16384 event slots are in use"):
        lending.lend()
    del kept
