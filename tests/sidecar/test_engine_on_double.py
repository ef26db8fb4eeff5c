"""A whole engine on the double of the driver: of its catalog's images it page-locks those that it loads, no others."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from sidecar.driver_double import DriverDouble
from sidecar.rig import Rig, config, inside, scrub, spec
from stack.double_engine import in_host_memory, nothing

from aegaeon_native import CudaDevice
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.backends.torch import backend, cache
from aegaeon_sidecar.engine import engine as engine_module
from aegaeon_sidecar.memory import gpu

SLAB = 2 << 20
MEMORY = {"device_bytes": 8 * SLAB, "slab_bytes": SLAB, "host_kv_bytes": 8 * SLAB}
CATALOG = ("llama", "mistral", "qwen2")


@pytest.fixture
def on_double(driver: DriverDouble, monkeypatch: pytest.MonkeyPatch) -> DriverDouble:
    """Steps are computed by the CPU, in the double's memory."""
    monkeypatch.setattr(gpu, "CudaDevice", partial(CudaDevice, driver=str(driver.path)))
    for module in (backend, cache):
        monkeypatch.setattr(module, "from_dlpack", in_host_memory)
    monkeypatch.setattr(engine_module, "memory_infos", lambda *_: ())
    monkeypatch.setattr(engine_module, "enter", nothing)
    return driver


async def until_locked(driver: DriverDouble, count: int) -> None:
    async with asyncio.timeout(10.0):
        while driver.locked != count:  # noqa: ASYNC110 - another thread locks, and announces nothing
            await asyncio.sleep(0.002)


async def test_an_image_is_locked_behind_its_first_load_and_the_next_load_copies_locked_pages_alone(
    scheduler: Rig, on_double: DriverDouble
) -> None:
    async with inside(config(scheduler.folder, device="cuda:0", memory=MEMORY)) as engine:
        link = await scheduler.link("a")
        before = on_double.locked
        link.send(pb.Catalog(models=[spec(name, scheduler.models[name]) for name in CATALOG]))
        await link.cached(*CATALOG)
        assert on_double.locked == before, "what no load names is not locked"
        for loads, name in enumerate(("mistral", "mistral", "qwen2")):
            if loads:
                await link.done(link.send(pb.Unload(model="mistral")))
                scrub(engine)
                pageable = on_double.pageable_bytes
            report = await link.done(link.send(pb.Load(model=name, slabs=link.models[name].footprint.weight_slabs)))
            assert report.done.bytes == link.models[name].footprint.weight_bytes
            if loads == 1:
                assert on_double.pageable_bytes == pageable
            await until_locked(on_double, before + (2 if name == "qwen2" else 1))
