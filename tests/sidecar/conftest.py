"""A folder on a tmpfs with a short path (unix sockets), a scripted scheduler in it, and torch on one thread."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # before torch or triton is imported: kernels run on the CPU

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sidecar.driver_double import DriverDouble
from sidecar.rig import Rig, rig
from sidecar.web import Server, serving

from aegaeon_sidecar.backends.torch import configure_threads


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    configure_threads(1)


@pytest.fixture
def folder() -> Iterator[Path]:
    tmpfs = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="aegaeon-test-", dir=tmpfs if tmpfs.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="session")
def driver_of_all(tmp_path_factory: pytest.TempPathFactory) -> DriverDouble:
    return DriverDouble(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(driver_of_all: DriverDouble) -> Iterator[DriverDouble]:
    """The double of NVIDIA's driver; what a test locks for its GPUs it unlocks."""
    assert driver_of_all.locked == 0
    yield driver_of_all
    driver_of_all.reset()
    assert driver_of_all.locked == 0


@pytest.fixture
def web() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture
async def scheduler(folder: Path, tiny_models: dict[str, Path]) -> AsyncIterator[Rig]:
    """The script, with the four tiny models to serve."""
    async with rig(folder, tiny_models) as made:
        yield made
