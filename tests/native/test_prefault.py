"""Memory behind slabs before they are used."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from aegaeon_native import NativeError, Range, SlabPool

SLAB = 65536
SHM = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


def first_page_there(path: Path, slab: int) -> bool:
    """Whether the file holds something of the slab: reserving its pages alone leaves a hole."""
    with path.open("rb") as file:
        try:
            return os.lseek(file.fileno(), slab * SLAB, os.SEEK_DATA) < (slab + 1) * SLAB
        except OSError:  # only a hole from there on
            return False


def test_the_requested_slab_is_backed_by_memory() -> None:
    with tempfile.TemporaryDirectory(dir=SHM) as folder:
        path = Path(folder) / "slabs"
        pool = SlabPool.shared(str(path), SLAB, 4)
        assert not any(first_page_there(path, slab) for slab in range(4))
        pool.prefault(2)
        assert [first_page_there(path, slab) for slab in range(4)] == [False, False, True, False]
        pool.close()


def test_prefaulting_keeps_the_contents_of_an_allocated_slab() -> None:
    pool = SlabPool.private("prefault", SLAB, 2)
    place, slabs = Range(pool, 1), pool.take(1)
    place.map(0, slabs)
    view = np.asarray(place.view(0, SLAB))
    view[:] = np.arange(SLAB, dtype=np.uint32).astype(np.uint8)
    for slab in range(2):
        pool.prefault(slab)
    assert (view == np.arange(SLAB, dtype=np.uint32).astype(np.uint8)).all()
    assert pool.free == 1
    pool.check()


@pytest.mark.parametrize("slab", [-1, 2])
def test_an_unknown_slab_is_named(slab: int) -> None:
    with pytest.raises(NativeError, match=f"slab {slab} is not of this pool of 2"):
        SlabPool.private("prefault", SLAB, 2).prefault(slab)


def test_a_closed_pool_is_refused() -> None:
    pool = SlabPool.private("prefault", SLAB, 2)
    pool.close()
    with pytest.raises(NativeError, match="closed"):
        pool.prefault(0)
