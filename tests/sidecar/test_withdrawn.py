"""A model that leaves the catalog, or fails, while it is being brought: nothing of it stays behind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from sidecar.rig import PATIENCE_S, Rig, config, inside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.errors import BackendError


class Slow(TorchBackend):
    """Begins to register a model when `begun`, and has registered it when `goes_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def register(self, model: str, *more: Any) -> None:
        self.begun.set()
        assert self.goes_on.wait(PATIENCE_S)
        super().register(model, *more)


class Unbound(TorchBackend):
    """Cannot bind the blocks of a KV shape the first time. `registered`: what it has now."""

    failures = 1

    def bind_kv(self, kv_shape: str, *blocks: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise BackendError("no memory for its views")
        super().bind_kv(kv_shape, *blocks)

    @property
    def registered(self) -> set[str]:
        return set(self._shells)


async def test_a_model_that_failed_while_its_kv_was_bound_can_be_computed_once_it_is_cached(scheduler: Rig) -> None:
    backend = Unbound()
    async with inside(config(scheduler.folder), backend):
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[spec("m", scheduler.models["mistral"])]))
        await link.until(lambda: "m" in link.models and link.models["m"].phase == mpb.MODEL_PHASE_FAILED)
        assert not backend.registered, "its range is gone"
        link.send(pb.Catalog(models=[spec("m", scheduler.models["mistral"])], retry=True))
        await link.until(lambda: link.models["m"].phase == mpb.MODEL_PHASE_CACHED)
        load = link.send(pb.Load(model="m", slabs=32))
        link.send(scheduler.open("r", "m", [5, 6, 7], max_tokens=4))
        turn = link.send(pb.Turn(model="m", prefill=[pb.PrefillPart(seq=seq("r"), tokens=8)], slabs=8), after=[load])
        await link.done(turn)
        assert len(await scheduler.received_tokens("r", 1)) == 1


async def test_adapters_of_a_model_that_was_withdrawn_while_it_was_registered_are_not_begun(scheduler: Rig) -> None:
    """They would be tried for ever, each time with a report that their base is cached, whatever its name has now."""
    backend, adapter = Slow(), scheduler.folder / "adapter"
    async with inside(config(scheduler.folder), backend) as engine:
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[spec("m", scheduler.models["mistral"], adapters={"x": adapter})]))
        assert await asyncio.to_thread(backend.begun.wait, PATIENCE_S)
        link.send(pb.Catalog(models=[spec("m", scheduler.folder / "nothing"), spec("n", scheduler.models["qwen2"])]))
        await link.until(lambda: "n" in link.models)  # it has gone
        backend.goes_on.set()
        await link.cached("n")  # what the fetcher had to do before is done
        assert link.models["m"].phase == mpb.MODEL_PHASE_FAILED
        assert not engine.state.table.adapters
        assert not engine.state.table.withdrawn
