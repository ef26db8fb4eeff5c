"""The hand-off of blocks in every interleaving of source, adopter and sweeper, with either side killed at every step.

The code is the real one (Lending, Borrowing, BlockPool, sweep, on real files); its atomic operations are the steps.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sidecar.interleave import Run, every_run

from aegaeon_native import BlockPool, Event, EventTable, SlabPool
from aegaeon_native.leases import ByteLocks, is_held
from aegaeon_sidecar.domain.errors import StaleError
from aegaeon_sidecar.engine import sweeper
from aegaeon_sidecar.memory import leases as leases_module
from aegaeon_sidecar.memory.leases import Borrowing, Lending
from aegaeon_sidecar.memory.segments import leases_path, segment_path
from aegaeon_sidecar.weights.image_folder import LOCK_NAME

SLAB = 4096


class SteppedLocks(ByteLocks):
    """Bytes of the leases' file, a step before each operation."""

    run = Run([])

    def share(self, at: int) -> None:
        self.run.step("locks the byte")
        super().share(at)

    def release(self, at: int) -> None:
        self.run.step("unlocks the byte")
        super().release(at)

    def is_shared(self, at: int) -> bool:
        self.run.step("looks for readers")
        return super().is_shared(at)


class SteppedEvent:
    def __init__(self, event: Event, run: Run) -> None:
        self._event = event
        self._run = run
        self.handle = event.handle

    def set(self) -> None:
        self._run.step("ends the lease")
        self._event.set()

    @property
    def done(self) -> bool:
        self._run.step("looks whether the lease is over")
        return self._event.done


class SteppedTable:
    run = Run([])

    def __init__(self, table: EventTable) -> None:
        self._table = table

    @staticmethod
    def create(path: str, slots: int) -> SteppedTable:
        return SteppedTable(EventTable.create(path, slots))

    @staticmethod
    def attach(path: str) -> SteppedTable:
        return SteppedTable(EventTable.attach(path))

    def event(self) -> SteppedEvent:
        return SteppedEvent(self._table.event(), self.run)

    def open(self, slot: int, generation: int) -> SteppedEvent:
        return SteppedEvent(self._table.open(slot, generation), self.run)

    def close(self) -> None:
        self._table.close()


class Steps:
    """Puts a step of the run before every operation on what the actors share."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock: str | None = None
        self.run = Run([])
        monkeypatch.setattr(leases_module, "ByteLocks", SteppedLocks)
        monkeypatch.setattr(leases_module, "EventTable", SteppedTable)
        monkeypatch.setattr(leases_module, "SLOTS", 4)
        monkeypatch.setattr(sweeper, "locked", self.locked)
        monkeypatch.setattr(sweeper, "is_held", self.is_held)

    @property
    def run(self) -> Run:
        return self._run

    @run.setter
    def run(self, run: Run) -> None:
        self._run = SteppedLocks.run = SteppedTable.run = run

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """The folder's lock, which an actor that waits for it does not get before it is free."""
        if path.name == LOCK_NAME:  # the cache's, within the folder's
            yield
            return
        self.run.step("locks the folder", lambda: self._lock is None)
        self._lock = "held"
        try:
            yield
        finally:
            self._lock = None  # also when its holder is killed: the kernel does that

    def is_held(self, path: Path) -> bool:
        self.run.step(f"asks who holds {path.suffix}")
        return is_held(path)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def let_go(*paths: Path) -> None:
    """What the kernel does with the locks of a process that dies, to this process's handles of these files."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") in map(str, paths):
                fcntl.flock(int(name), fcntl.LOCK_UN)


class HandOff:
    """A source with room for one sequence's blocks, an adopter, and what becomes of the blocks."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.segment = segment_path(folder, "source", "1")
        self.run = run
        self.lending = Lending(leases_path(self.segment))
        self.pool = SlabPool.shared(str(self.segment), SLAB, 1)
        self.blocks = BlockPool(self.pool, SLAB, 1)
        self.mine: Any = self.blocks.allocate(1, 1)
        self._fill(1)
        self.event = self.lending.lend()
        self.borrowing: Borrowing | None = None
        self.copied: list[int] = []
        self.adopted = self.refused = self.freed = False

    def source(self) -> None:
        """Close: the lease ends, and the blocks go to another sequence as soon as they have no readers."""
        self.lending.recall(self.event, "shape", self.mine.tolist(), self._use_again)
        self.lending.reclaim()

    def adopter(self) -> None:
        """Adopt: two copies of half a block each."""
        self.run.step("attaches")
        theirs = SlabPool.attach(str(self.segment))
        self.borrowing = Borrowing(leases_path(self.segment))
        try:
            with self.borrowing.reading(*self.event.handle):
                self._copy(theirs, 0)
                self._copy(theirs, 1)
            self.adopted = True
        except StaleError:
            self.refused = True

    def _copy(self, theirs: SlabPool, half: int) -> None:
        self.run.step(f"copies half {half}")
        view = _bytes_at(theirs.address + half * SLAB // 2, SLAB // 2)
        self.copied += sorted(set(view))

    def _use_again(self) -> None:
        self.run.step("uses the blocks again")
        self.blocks.release(self.mine)
        self.mine = self.blocks.allocate(1, 1)
        self._fill(2)
        self.freed = True

    def _fill(self, content: int) -> None:
        self.blocks.view()[:SLAB] = content

    def killed(self, name: str) -> None:
        """The kernel closes what the victim had open."""
        if name == "adopter" and self.borrowing is not None:
            self.borrowing._locks.close()
        if name == "source":
            let_go(self.segment, leases_path(self.segment))

    def close(self) -> None:
        if self.borrowing is not None:
            self.borrowing.close()
        self.blocks.close()
        self.pool.close()
        self.lending.close()


def _bytes_at(address: int, nbytes: int) -> list[int]:
    import ctypes

    return list(np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=np.uint8)[:: SLAB // 8])


def explore(steps: Steps, folder: Path, judge: Callable[[HandOff], None]) -> tuple[int, set[str]]:
    """Play every order; returns how many there were and which outcomes were seen."""
    count, outcomes = 0, set()
    for run in every_run():
        steps.run = run
        scene = HandOff(folder, run)
        run.actor("source", scene.source)
        run.actor("adopter", scene.adopter)
        run.play(("source", "adopter"), scene.killed)
        judge(scene)
        outcomes.add(f"{'adopted' if scene.adopted else 'refused' if scene.refused else 'died'}")
        count += 1
        scene.close()
        assert {path.name for path in folder.iterdir()} <= {LOCK_NAME}
    return count, outcomes


def test_blocks_have_one_owner_at_any_time_whichever_process_is_killed_at_any_step(
    steps: Steps, tmp_path: Path
) -> None:
    def judge(scene: HandOff) -> None:
        assert 2 not in scene.copied, f"read after use by another: {scene.run.trace}"
        assert scene.adopted or scene.refused or scene.run.victim == "adopter", scene.run.trace
        if scene.run.victim == "source":
            assert {path.name for path in sweeper.sweep(tmp_path)} == {"source@1.kv", "source@1.leases"}
            return
        assert scene.lending.reclaim() == 0, f"orphaned blocks: {scene.run.trace}"
        assert scene.freed
        scene.blocks.check()

    count, outcomes = explore(steps, tmp_path, judge)
    assert count > 200
    assert outcomes == {"adopted", "refused", "died"}


def test_the_explorer_finds_the_race_when_a_reader_looks_before_it_locks(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def hasty(self: Borrowing, slot: int, generation: int) -> Iterator[None]:
        if self._table.open(slot, generation).done:
            raise StaleError("over")
        self._locks.share(slot)
        yield
        self._locks.release(slot)

    def judge(scene: HandOff) -> None:
        found.append(2 in scene.copied)

    found: list[bool] = []
    monkeypatch.setattr(Borrowing, "reading", hasty)
    explore(steps, tmp_path, judge)
    assert any(found)


def test_live_segments_are_kept_and_orphans_removed_in_any_order(steps: Steps, tmp_path: Path) -> None:
    for run in every_run():
        steps.run = run
        segment, made = segment_path(tmp_path, "a", "1"), []

        def make() -> None:
            with steps.locked(tmp_path):
                run.step("makes the leases")  # noqa: B023 - played before the next run comes
                made.append(Lending(leases_path(segment)))  # noqa: B023
                run.step("makes the segment")  # noqa: B023
                made.append(SlabPool.shared(str(segment), SLAB, 1))  # noqa: B023

        run.actor("maker", make)
        run.actor("sweeper", lambda: sweeper.sweep(tmp_path) and None)
        run.play(("maker", "sweeper"), lambda name: let_go(segment, leases_path(segment)) if name == "maker" else None)  # noqa: B023
        sweeper.sweep(tmp_path)
        left = {path.suffix for path in tmp_path.iterdir()} - {".lock"}
        assert left == (set() if run.victim == "maker" else {".kv", ".leases"}), run.trace
        for thing in made:
            thing.close()
