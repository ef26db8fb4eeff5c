"""The node's cache of weights: filled once, published whole, below its budget, evicted only when nobody maps it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from aegaeon_sidecar.errors import CacheFullError, FillCancelledError, WeightsError
from aegaeon_sidecar.weights.cache import HostCache, Image

KB = 1024
Bytes = NDArray[np.uint8]


def cache(folder: Path, budget: int = 100 * KB) -> HostCache:
    return HostCache(folder, budget, threading.Event().wait)


def images(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.weights"))


def ones(target: Bytes) -> None:
    target[:] = 1


def test_an_image_is_filled_once_by_however_many_sidecars(folder: Path) -> None:
    fills, made = [], []

    def fill(target: Bytes) -> None:
        fills.append(threading.get_ident())
        ones(target)

    def obtain() -> None:
        made.append(cache(folder).obtain("c", 8 * KB, fill))

    threads = [threading.Thread(target=obtain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fills) == 1
    assert [image.nbytes for image in made] == [8 * KB] * 4
    for image in made:
        image.close()


def test_a_fill_that_fails_leaves_nothing_behind_and_the_next_one_succeeds(folder: Path) -> None:
    def broken(target: Bytes) -> None:
        raise WeightsError("truncated")

    with pytest.raises(WeightsError, match="truncated"):
        cache(folder).obtain("c", 8 * KB, broken)
    assert {path.name for path in folder.iterdir()} == {"weights.lock"}
    cache(folder).obtain("c", 8 * KB, ones).close()


def test_the_oldest_image_that_nobody_maps_makes_room(folder: Path) -> None:
    mapped: Image = cache(folder).obtain("mapped", 40 * KB, ones)
    cache(folder).obtain("idle", 40 * KB, ones).close()
    cache(folder).obtain("new", 40 * KB, ones).close()
    assert images(folder) == ["mapped.weights", "new.weights"]
    mapped.close()


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(folder: Path) -> None:
    mapped = cache(folder).obtain("mapped", 80 * KB, ones)
    with pytest.raises(CacheFullError, match=rf"need {40 * KB} .* is {100 * KB}, of which {80 * KB}"):
        cache(folder).obtain("new", 40 * KB, ones)
    mapped.close()


def test_what_a_killed_sidecar_left_half_written_is_removed(folder: Path) -> None:
    (folder / "dead.partial").write_bytes(b"half")
    cache(folder).obtain("c", 8 * KB, ones).close()
    assert not (folder / "dead.partial").exists()


def test_waiting_for_another_sidecar_can_be_given_up(folder: Path) -> None:
    stop = threading.Event()

    def fill(target: Bytes) -> None:
        stop.set()
        with pytest.raises(FillCancelledError):
            HostCache(folder, 100 * KB, stop.wait).obtain("other", KB, ones)
        ones(target)

    cache(folder).obtain("c", 8 * KB, fill).close()
