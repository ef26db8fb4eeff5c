"""Weights from files to a GPU by way of the stage ring alone, on the double of the driver: no copy in host memory."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from conftest import ModelFactory
from sidecar.driver_double import DriverDouble

from aegaeon_native import Range, SlabPool
from aegaeon_sidecar.models.layout import lay_out
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing

SLAB = 2 << 20


def tensors(layout: Layout, image: bytes) -> list[bytes]:
    return [image[place.offset : place.offset + place.nbytes] for place in layout.tensors]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_arrives_on_the_device_as_it_does_in_host_memory(
    driver: DriverDouble, make_model: ModelFactory, dtype: str
) -> None:
    directory: Path = make_model("qwen2", shard="40KB")
    layout = lay_out(directory, 0, dtype, 16)
    slabs = -(-layout.weight_bytes // SLAB)
    pool = SlabPool.cuda(driver.gpu, SLAB, slabs)
    weights = Range(pool, slabs)
    weights.map(0, pool.take(slabs))
    ring = StageRing(chunk_bytes=8192, depth=3, gpu=driver.gpu)
    assert driver.locked == 1
    host = np.zeros(layout.weight_bytes, np.uint8)

    content = fill(look(directory, layout), [host], ring, on_device=weights.address)
    both = ctypes.string_at(weights.address, layout.weight_bytes)
    ctypes.memset(weights.address, 0, layout.weight_bytes)
    fill(look(directory, layout), [], ring, on_device=weights.address, hashed=False)
    alone = ctypes.string_at(weights.address, layout.weight_bytes)

    assert content
    assert tensors(layout, host.tobytes()) == tensors(layout, both) == tensors(layout, alone)
    assert any(any(tensor) for tensor in tensors(layout, alone))
    del ring  # and the pages of its slots
    weights.close()
    pool.close()
