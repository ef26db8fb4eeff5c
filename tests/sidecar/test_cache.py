"""The node's cache of weights: filled once, published whole, below its budget, evicted only when unpinned."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sidecar.mounts import small_tmpfs

from aegaeon_sidecar.domain.errors import CacheFullError, FillCancelledError, WeightsError
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.image import Image

KB = 1024
HOLDER = """
import os, sys, time
from pathlib import Path
from aegaeon_sidecar.weights.cache import HostCache
folder, what = Path(sys.argv[1]), sys.argv[2]
def fill(file):
    os.pwrite(file, b"1" * 40 * 1024, 0)
    if what == "filling":
        print("ready", flush=True)
        time.sleep(60)
    return "c"
image = HostCache(folder, 100 * 1024).obtain("i", 40 * 1024, fill)
print("ready", flush=True)
time.sleep(60)
"""


def cache(folder: Path, budget: int = 100 * KB) -> HostCache:
    return HostCache(folder, budget)


def files(folder: Path, suffix: str = "weights") -> list[str]:
    return sorted(path.stem for path in folder.glob(f"*.{suffix}"))


def write(file: int, name: str) -> None:
    """All of it."""
    os.pwrite(file, name[0].encode() * os.fstat(file).st_size, 0)


def ones(file: int) -> str:
    write(file, "1")
    return "ones"


def test_an_image_that_cannot_be_mapped_is_not_pinned_by_the_attempt(tmp_path: Path) -> None:
    """A process has so many maps at most, and each slab that is mapped may be one."""
    nbytes = 64 << 20
    host = cache(tmp_path, nbytes)
    host.obtain("one", nbytes, ones).close()
    before, (soft, hard) = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (32 << 20), hard))
    try:
        with pytest.raises(OSError, match="Cannot allocate memory"):
            host.find("one", nbytes)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == before
    host.obtain("two", nbytes, lambda file: "twos").close()
    assert files(tmp_path) == ["twos"], "the first one could be evicted"


def put(host: HostCache, name: str, nbytes: int = 40 * KB) -> Image:
    """An image whose identity and content are called alike."""

    def fill(file: int) -> str:
        write(file, name)
        return name

    return host.obtain(name, nbytes, fill)


def drop(image: Image) -> None:
    image.unpin()
    image.close()


def test_an_image_is_filled_once_by_however_many_sidecars(folder: Path) -> None:
    fills, made = [], []

    def fill(file: int) -> str:
        fills.append(threading.get_ident())
        return ones(file)

    def obtain() -> None:
        made.append(cache(folder).obtain("i", 8 * KB, fill))

    threads = [threading.Thread(target=obtain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fills) == 1
    assert [(image.nbytes, image.content) for image in made] == [(8 * KB, "ones")] * 4
    for image in made:
        image.close()


def test_different_images_are_filled_side_by_side(folder: Path) -> None:
    both = threading.Barrier(2, timeout=10)

    def fill(file: int) -> str:
        both.wait()  # broken unless the other one is being filled as well
        return f"c{threading.get_ident()}"

    def obtain(name: str) -> None:
        cache(folder).obtain(name, KB, fill).close()

    threads = [threading.Thread(target=obtain, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files(folder)) == 2


def test_equal_content_under_two_names_is_kept_once(folder: Path) -> None:
    host = cache(folder)
    one, other = host.obtain("a", 8 * KB, ones), host.obtain("b", 8 * KB, ones)
    assert files(folder) == ["ones"]
    assert host.used_bytes() == 8 * KB
    one.close()
    other.close()


def test_a_fill_that_fails_leaves_nothing_behind_and_the_next_one_succeeds(folder: Path) -> None:
    def broken(file: int) -> str:
        raise WeightsError("truncated")

    with pytest.raises(WeightsError, match="truncated"):
        cache(folder).obtain("i", 8 * KB, broken)
    assert {path.name for path in folder.iterdir()} == {"weights.lock"}
    cache(folder).obtain("i", 8 * KB, ones).close()


def test_images_of_files_read_before_are_found_without_reading_them(folder: Path) -> None:
    drop(put(cache(folder), "a"))
    again = cache(folder).find("a", 40 * KB)
    assert again is not None
    assert again.content == "a"
    assert np.frombuffer(again._map, np.uint8)[-1] == ord("a")
    again.close()
    assert cache(folder).find("b", 40 * KB) is None


def test_the_least_recently_used_image_is_evicted(folder: Path) -> None:
    host = cache(folder)
    first, second = put(host, "first"), put(host, "second")
    first.unpin()
    second.unpin()
    assert first.pin()  # used again: now the newest
    first.unpin()
    third = put(host, "third")
    assert files(folder) == ["first", "third"]
    assert not second.pin()
    for image in (first, second, third):
        image.close()


def test_a_pinned_image_is_not_evicted_and_the_refusal_names_the_numbers(folder: Path) -> None:
    pinned = put(cache(folder), "pinned", 80 * KB)
    with pytest.raises(CacheFullError, match=rf"need {40 * KB} .* is {100 * KB}, of which {80 * KB} are in use"):
        put(cache(folder), "new")
    pinned.unpin()
    put(cache(folder), "new").close()
    pinned.close()


def test_evicting_frees_the_memory_of_an_image_that_is_still_mapped(folder: Path) -> None:
    idle = put(cache(folder), "idle")
    idle.unpin()
    before = os.fstat(idle._file).st_blocks
    put(cache(folder), "b").close()
    put(cache(folder), "c").close()
    assert before > 0
    assert os.fstat(idle._file).st_blocks == 0
    idle.close()


def test_without_eviction_only_free_memory_is_used(folder: Path) -> None:
    drop(put(cache(folder), "a", 80 * KB))
    with pytest.raises(CacheFullError):
        cache(folder).obtain("b", 40 * KB, ones, evict=False)
    assert files(folder) == ["a"]


def test_an_image_that_cannot_fit_evicts_nothing(folder: Path) -> None:
    drop(put(cache(folder), "a"))
    with pytest.raises(CacheFullError, match=f"need {200 * KB} bytes"):
        put(cache(folder), "b", 200 * KB)
    assert files(folder) == ["a"]


def test_waiting_for_another_sidecar_can_be_cancelled(folder: Path) -> None:
    def fill(file: int) -> str:
        with pytest.raises(FillCancelledError, match="gave up waiting"):
            cache(folder).obtain("i", 8 * KB, ones, give_up=lambda: True)
        return ones(file)

    cache(folder).obtain("i", 8 * KB, fill).close()


def test_files_that_read_differently_without_having_changed_are_refused(folder: Path) -> None:
    host = cache(folder, 50 * KB)
    drop(put(host, "a"))
    drop(put(host, "b"))  # evicts a
    with pytest.raises(WeightsError, match="check the disk"):
        host.obtain("a", 40 * KB, ones)
    assert files(folder, "partial") == []
    host.obtain("a", 40 * KB, ones).close()


def test_a_tmpfs_that_is_too_small_is_named_with_what_to_do(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "shm", "64k") as small:
        with pytest.raises(CacheFullError, match=rf"free of {64 * KB}, though host_cache_bytes is .*--shm-size"):
            put(cache(small), "a", 80 * KB)
        assert files(small, "partial") == []
        put(cache(small), "b", 16 * KB).close()


def test_memory_reserved_by_a_draft_is_not_reserved_twice(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "shm", "64k") as small:
        draft = cache(small).draft("a", 40 * KB)
        assert draft is not None
        with pytest.raises(CacheFullError, match=f"has {24 * KB} free"):
            cache(small).draft("b", 40 * KB)
        os.pwrite(draft.file, bytes(40 * KB), 0)
        cache(small).publish(draft, "a").close()
        put(cache(small), "b", 24 * KB).close()


def test_a_published_image_is_fully_allocated(folder: Path) -> None:
    image = cache(folder).obtain("i", 40 * KB, lambda file: f"{os.pwrite(file, b'x', 20 * KB)}")
    assert os.fstat(image._file).st_blocks * 512 == 40 * KB
    assert bytes(np.frombuffer(image._map, np.uint8)) == bytes(20 * KB) + b"x" + bytes(20 * KB - 1)
    image.close()


def test_an_image_whose_last_pages_cannot_be_allocated_is_not_published(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "shm", "64k") as small:

        def fill(file: int) -> str:
            (small / "other").write_bytes(bytes(40 * KB))
            return "c"

        with pytest.raises(CacheFullError, match="no room for its last pages"):
            cache(small).obtain("i", 40 * KB, fill)
        assert {path.name for path in small.iterdir()} == {"weights.lock", "other"}


@pytest.mark.parametrize("what", ["filling", "pinning"])
def test_a_killed_sidecars_reservation_does_not_count(folder: Path, what: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), what], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(CacheFullError):
            put(cache(folder), "big", 80 * KB)
        holder.send_signal(signal.SIGKILL)
    put(cache(folder), "big", 80 * KB).close()
    assert files(folder) == ["big"]
    assert files(folder, "partial") == []


STEPS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), min_size=1, max_size=60)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_order_of_uses_keeps_what_an_ideal_lru_keeps(folder: Path, steps: list[tuple[str, bool]]) -> None:
    """Budget for three; a step uses a model and may keep one pinned. Never over budget, never a pinned one gone."""
    inside = folder / f"order-{len(list(folder.iterdir()))}"
    inside.mkdir()
    host = cache(inside, 3 * KB)
    ideal: OrderedDict[str, None] = OrderedDict()
    pinned: Image | None = None
    for name, keep in steps:
        image = put(host, name, KB)
        ideal[name] = None
        ideal.move_to_end(name)
        if len(ideal) > 3:
            held = pinned.content if pinned is not None else None
            del ideal[next(other for other in ideal if other not in (held, name))]
        assert host.used_bytes() <= 3 * KB
        assert files(inside) == sorted(ideal)
        if keep:
            if pinned is not None:
                drop(pinned)
            pinned = image
        else:
            drop(image)
    if pinned is not None:
        drop(pinned)
    shutil.rmtree(inside)
