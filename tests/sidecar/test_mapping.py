"""A load maps slabs and copies into those that are mapped at the same time, on the double of the driver."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from sidecar.driver_double import DriverDouble

from aegaeon_native import EventTable, NativeError, Range, SlabPool
from aegaeon_proto.engine.catalog import DirectorySource, ModelSpec
from aegaeon_proto.engine.commands import Load
from aegaeon_sidecar.domain.errors import EngineError
from aegaeon_sidecar.domain.program import Lane
from aegaeon_sidecar.engine.state import Queued
from aegaeon_sidecar.memory.copier import Copier
from aegaeon_sidecar.weights import mapping
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.image import Image
from aegaeon_sidecar.weights.mapping import map_slabs
from aegaeon_sidecar.weights.models import Model, SharedWeights

SLAB = 2 << 20
SLABS = 6
OUT_OF_MEMORY = 2


@dataclass
class World:
    """A model of six slabs, two of which are mapped at once, its image, and the weights lane's copier."""

    driver: DriverDouble
    pool: SlabPool
    model: Model
    image: Image
    copier: Copier

    def bring(self) -> None:
        """As a load does."""
        done, command = 0, Queued(1, Lane.WEIGHTS, (), Load("m", 0), 0)
        try:
            for mapped in map_slabs(self.model, SLAB):
                if mapped > done:
                    self.copier.copy_image(command, self.range, self.image.address, SLABS * SLAB, done, mapped)
                    done = mapped
        finally:
            self.copier.finish()

    @property
    def range(self) -> Range:
        return cast(Range, self.model.range)

    def content(self) -> bytes:
        return ctypes.string_at(self.range.address, SLABS * SLAB)


@pytest.fixture
def world(folder: Path, driver: DriverDouble, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(mapping, "_AT_ONCE_BYTES", 2 * SLAB)
    pool, noise = SlabPool.cuda(driver.gpu, SLAB, 2 * SLABS), np.random.default_rng(0).bytes(SLABS * SLAB)
    image = HostCache(folder, SLABS * SLAB, driver.gpu).obtain(
        "m", SLABS * SLAB, lambda file: str(os.pwrite(file, noise, 0))
    )
    model = Model(ModelSpec("m", DirectorySource("")))
    model.range, model.weights = Range(pool, SLABS), SharedWeights(slabs=pool.take(SLABS))
    assert image.lock_next(driver.gpu, image.nbytes)
    copier = Copier("weights", EventTable.private(8), (driver.gpu,))
    yield World(driver, pool, model, image, copier)
    copier.close()
    model.range.close()
    image.close()
    pool.close()


def test_every_byte_is_there_when_all_is_mapped(world: World) -> None:
    world.driver.late()
    world.bring()
    assert world.content() == world.image.bytes.tobytes()
    assert world.model.shown == cast(SharedWeights, world.model.weights).slabs
    assert world.driver.pageable_bytes == 0


def test_the_first_slabs_are_copied_before_the_last_are_mapped(world: World) -> None:
    """With all mapped before the first copy, the failure of the last map leaves slabs that nothing was copied to."""
    world.driver.fail("cuMemMap", OUT_OF_MEMORY, skip=SLABS - 1)
    copies = world.driver.calls("cuMemcpyAsync")
    with pytest.raises(EngineError, match="could not be mapped"):
        world.bring()
    assert world.driver.calls("cuMemcpyAsync") > copies
    assert ctypes.string_at(world.range.address, 4 * SLAB) == world.image.bytes[: 4 * SLAB].tobytes()
    assert world.range.mapped == len(world.model.shown) == 4
    world.range.unmap(0, 4)
    world.model.shown = []
    world.bring()
    assert world.content() == world.image.bytes.tobytes()


@pytest.mark.parametrize("skip", range(4))
def test_slabs_of_an_earlier_load_are_replaced_a_few_at_a_time_and_a_failure_leaves_no_hole(
    world: World, skip: int
) -> None:
    world.bring()
    kept = cast(SharedWeights, world.model.weights).slabs[:2]
    world.model.weights = SharedWeights(slabs=kept + world.pool.take(SLABS - 2))
    world.driver.fail("cuMemMap", OUT_OF_MEMORY, skip=skip)
    with pytest.raises(EngineError):
        world.bring()
    shown = world.model.shown
    assert shown == world.model.weights.slabs[: 2 + skip // 2 * 2]
    assert world.range.mapped == len(shown)
    assert world.range.unmap(0, len(shown)) == shown
    world.model.shown = []
    world.bring()
    assert world.content() == world.image.bytes.tobytes()


def test_a_lost_gpu_ends_a_load_with_the_error_that_it_was_lost_by(world: World) -> None:
    world.driver.fail("cuMemcpyAsync", 700, skip=1)
    with pytest.raises(NativeError, match=r"CUDA error 700"):
        world.bring()
