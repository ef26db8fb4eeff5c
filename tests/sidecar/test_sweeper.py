"""What dead sidecars left in the node's folder is found and removed; what living ones hold is not touched."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aegaeon_native import SlabPool
from aegaeon_native.leases import hold, is_held, locked
from aegaeon_sidecar.engine import sweeper
from aegaeon_sidecar.engine.sweeper import Kind, SharedFile, survey, sweep
from aegaeon_sidecar.memory.leases import Borrowing, Lending
from aegaeon_sidecar.memory.segments import leases_path, segment_path
from aegaeon_sidecar.weights.cache import HostCache

LIFE = """
import sys
from pathlib import Path
from aegaeon_native import SlabPool
from aegaeon_native.leases import locked
from aegaeon_sidecar.memory.leases import Lending
from aegaeon_sidecar.memory.segments import leases_path, segment_files, segment_path
from aegaeon_sidecar.weights.cache import HostCache
folder = Path(sys.argv[1])
segment = segment_path(folder, sys.argv[2], "1")
with locked(folder):
    lending = Lending(leases_path(segment))
    pool = SlabPool.gang([SlabPool.shared(str(file), 65536, 2) for file in segment_files(segment, 2)])
draft = HostCache(folder, 1 << 20).draft(sys.argv[2], 4096)
lease = lending.lend()
print(*lease.handle, flush=True)
sys.stdin.read()
"""


@contextmanager
def life(folder: Path, instance: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a segment for each of two ranks, a lease and a half-filled image."""
    command = [sys.executable, "-c", LIFE, str(folder), instance]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
        process.kill()


def by_name(found: list[SharedFile]) -> dict[str, SharedFile]:
    return {item.path.name: item for item in found}


def test_segments_of_a_killed_process_are_removed_and_those_of_a_live_one_are_not(tmp_path: Path) -> None:
    with life(tmp_path, "dead") as dead, life(tmp_path, "alive") as alive:
        dead.kill()
        dead.wait(timeout=60)
        found = by_name(survey(tmp_path))
        orphans = {name for name, item in found.items() if item.orphaned}
        assert orphans == {"dead@1.kv", "dead@1.1.kv", "dead@1.leases", "dead.partial"}
        assert found["alive@1.kv"].pids == (alive.pid,)
        assert found["alive@1.kv"].detail == "2 slabs of 65536 bytes, with memory behind them: none"
        assert found["alive@1.leases"].detail == "1 sequences lent, 0 being read"
        assert found["weights.lock"].kind is Kind.NOTE
        assert {path.name for path in sweep(tmp_path)} == orphans
        assert sweep(tmp_path) == []
        segments = {"alive@1.kv", "alive@1.1.kv", "alive@1.leases"}
        assert set(by_name(survey(tmp_path))) == {*segments, "alive.partial", "weights.lock"}


def test_images_and_foreign_files_stay(tmp_path: Path) -> None:
    image = HostCache(tmp_path, 1 << 20).obtain("files", 4096, lambda _: "content")
    (tmp_path / "notes.txt").write_text("x")
    found = by_name(survey(tmp_path))
    assert found["content.weights"].kind is Kind.IMAGE
    assert found["content.weights"].pids  # it is pinned, by this process
    assert found["notes.txt"].kind is Kind.OTHER
    assert sweep(tmp_path) == []
    assert image.pin()  # asking has not cost it its pin
    image.close()


def test_a_segment_whose_creator_died_midway_is_removed(tmp_path: Path) -> None:
    segment = segment_path(tmp_path, "a", "1")
    segment.write_bytes(b"")
    (found,) = [item for item in survey(tmp_path) if item.kind is Kind.SEGMENT]
    assert found.orphaned
    assert found.detail.startswith("never finished")
    assert sweep(tmp_path) == [segment]


def test_segments_under_construction_are_not_removed(tmp_path: Path) -> None:
    swept: list[Path] = []
    sweeper = threading.Thread(target=lambda: swept.extend(sweep(tmp_path)))
    segment = segment_path(tmp_path, "a", "1")
    with locked(tmp_path):
        sweeper.start()
        segment.write_bytes(b"")  # there, and not held yet: as between open and flock
        segment.unlink()
        lending, pool = Lending(leases_path(segment)), SlabPool.shared(str(segment), 65536, 2)
        assert sweeper.is_alive()
    sweeper.join(60)
    assert swept == []
    assert is_held(segment)
    pool.close()
    lending.close()


def test_a_folder_removed_while_waiting_for_its_lock_is_recreated(tmp_path: Path) -> None:
    folder, inside = tmp_path / "node", threading.Event()

    def come() -> None:
        with locked(folder):
            (folder / "x").touch()
            inside.set()

    with locked(folder):
        comer = threading.Thread(target=come)
        comer.start()
        assert not inside.wait(0.05)
        folder.rmdir()
    comer.join(60)
    assert (folder / "x").exists()


def test_readers_are_counted(tmp_path: Path) -> None:
    path = leases_path(segment_path(tmp_path, "a", "1"))
    lending = Lending(path)
    borrowing = Borrowing(path)
    kept = [lending.lend() for _ in range(5)]
    with borrowing.reading(*kept[1].handle), borrowing.reading(*kept[2].handle), borrowing.reading(*kept[4].handle):
        (found,) = [item for item in survey(tmp_path) if item.kind is Kind.LEASES]
        assert found.detail == "5 sequences lent, 3 being read (leases 1, 2, 4)"
    borrowing.close()
    lending.close()


def test_closing_a_handle_ends_its_lease(tmp_path: Path) -> None:

    handle = hold(tmp_path / "run.lock")
    assert is_held(tmp_path / "run.lock")
    os.close(handle)
    assert not is_held(tmp_path / "run.lock")
    assert not is_held(tmp_path / "nothing")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_sidecar_that_cannot_tidy_any_more_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper, "SWEEP_S", 0.01)
    crashed = threading.Event()
    made = sweeper.Sweeper(tmp_path, (tmp_path / "none").rmdir, lambda _: crashed.set())
    made.start()
    assert crashed.wait(60)
    made.stop()
