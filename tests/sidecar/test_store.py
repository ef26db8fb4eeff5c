"""Eviction in a folder of entries that processes share; a lock that ends with its entry locks no process out."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sidecar.mounts import small_tmpfs
from sidecar.test_cache import KB, cache, drop, files, put
from sidecar.test_sources import http, obtain
from sidecar.web import Server, quick_tier

from aegaeon_native.leases import share, try_locked
from aegaeon_sidecar.domain.errors import CacheFullError, DiskFullError, SidecarError, SourceError
from aegaeon_sidecar.weights.store import Entry, make_room

BUDGET = 100


@dataclass(frozen=True)
class Thing:
    """An entry; `stored` of its `claimed` bytes are there."""

    lock: Path
    whole: bool
    used_ns: int
    claimed: int
    stored: int
    pinned: bool

    def rank(self) -> tuple[bool, int]:
        return self.whole, self.used_ns

    def claimed_bytes(self) -> int:
        return self.claimed

    def stored_bytes(self) -> int:
        return self.stored

    def remove(self) -> None:
        self.lock.unlink()


@dataclass(frozen=True)
class Bounds:
    free: int
    budget_bytes: int = BUDGET

    def free_bytes(self) -> int:
        return self.free

    def over_budget(self, nbytes: int, used_bytes: int) -> SidecarError:
        return CacheFullError(f"{used_bytes} are in use")

    def no_space(self, nbytes: int) -> SidecarError:
        return DiskFullError("no space")


BYTES = st.integers(0, 50)
THINGS = st.lists(st.tuples(st.booleans(), st.integers(0, 3), BYTES, BYTES, st.booleans()), max_size=6)


@contextmanager
def made(folder: Path, drawn: list[tuple[bool, int, int, int, bool]]) -> Iterator[list[Thing]]:
    """The entries exist; pinned ones are locked by another process."""
    folder.mkdir()
    things = [
        Thing(folder / f"{number}.lock", whole, used_ns, max(claimed, stored), stored, pinned)
        for number, (whole, used_ns, claimed, stored, pinned) in enumerate(drawn)
    ]
    holds = [(share(thing.lock), thing.pinned) for thing in things]
    for handle in [handle for handle, pinned in holds if not pinned]:
        os.close(handle)
    yield things
    for handle in [handle for handle, pinned in holds if pinned]:
        os.close(handle)
    shutil.rmtree(folder)


def fits(things: list[Thing], nbytes: int, missing: int, free: int, gone: list[Thing]) -> bool:
    used = sum(thing.claimed for thing in things if thing not in gone)
    return used + nbytes <= BUDGET and free + sum(thing.stored for thing in gone) >= missing


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=THINGS, nbytes=st.integers(0, 120), missing=BYTES, free=st.integers(0, 100))
def test_no_more_go_than_must_the_least_first_and_none_for_what_finds_no_room(
    folder: Path, drawn: list[tuple[bool, int, int, int, bool]], nbytes: int, missing: int, free: int
) -> None:
    with made(folder / "things", drawn) as things:
        idle = sorted((thing for thing in things if not thing.pinned), key=Thing.rank)
        beginnings = [idle[:count] for count in range(len(idle) + 1)]
        expected = next((gone for gone in beginnings if fits(things, nbytes, missing, free, gone)), None)
        used, victims = sum(thing.claimed for thing in things), list[Entry](things)
        if expected is None:
            with pytest.raises((CacheFullError, DiskFullError)):
                make_room(Bounds(free), nbytes, missing=missing, used=used, victims=victims)
        else:
            left = make_room(Bounds(free), nbytes, missing=missing, used=used, victims=victims)
            there, freed = used - sum(thing.claimed for thing in expected), sum(thing.stored for thing in expected)
            assert left == min(BUDGET - there - nbytes, free + freed - missing)
        assert [thing for thing in things if not thing.lock.exists()] == [t for t in things if t in (expected or ())]


def test_an_image_that_finds_no_room_in_the_end_takes_none_from_others(folder: Path) -> None:
    drop(put(cache(folder), "idle"))
    pinned = put(cache(folder), "pinned")
    with pytest.raises(CacheFullError, match=f"of which {40 * KB} are in use"):
        put(cache(folder), "big", 80 * KB)
    assert files(folder) == ["idle", "pinned"]
    pinned.close()


def test_a_tmpfs_that_is_smaller_than_the_budget_is_made_room_on(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "shm", "64k") as small:
        drop(put(cache(small), "a"))
        put(cache(small), "b").close()
        assert files(small) == ["b"]


def test_a_model_that_is_evicted_or_refused_leaves_no_lock(web: Server, folder: Path) -> None:
    disk = quick_tier(folder, 4_000_000)  # one model
    obtain(disk, http(web, "first")).close()
    second = obtain(disk, http(web, "second"))
    web.files = {}
    with pytest.raises(SourceError):
        obtain(disk, http(web, "none"))
    assert {path.name for path in (folder / "disk").glob("?*.lock")} == {second.directory.name + ".lock"}
    second.close()


def test_who_waited_for_a_lock_that_was_removed_holds_the_one_that_came_instead(folder: Path) -> None:
    lock, handles = folder / "a.lock", list[int]()
    waiter = threading.Thread(target=lambda: handles.append(share(lock)))
    with try_locked(lock) as mine:
        assert mine
        waiter.start()
        waiter.join(0.05)
        lock.unlink()
    waiter.join(60)
    assert os.fstat(handles[0]).st_ino == lock.stat().st_ino
    with try_locked(lock) as mine:
        assert not mine
    os.close(handles[0])


def test_trying_to_lock_what_is_gone_makes_nothing(folder: Path) -> None:
    with try_locked(folder / "gone.weights") as mine:
        assert not mine
    assert list(folder.iterdir()) == []
