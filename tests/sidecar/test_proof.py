"""Models that are admitted by proof: it runs once for a node, fails its own model alone, and comes after other work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sidecar.rig import Rig, config, inside, spec

from aegaeon_native.arrays import DeviceBytes
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.errors import ModelError
from aegaeon_sidecar.models.placement import Layout, Proof


class Proving(TorchBackend):
    """The models of one folder have a proof: its key and what it does. `events`: in their order."""

    def __init__(self, directory: Path, key: str, act: Callable[[], None]) -> None:
        super().__init__()
        self.directory, self.key, self.act = directory, key, act
        self.events: list[str] = []

    def describe(self, directory: Path, max_model_len: int, task: str = "") -> Layout:
        layout = super().describe(directory, max_model_len, task)
        if directory != self.directory:
            return layout

        def run() -> None:
            self.events.append("prove")
            self.act()

        return replace(layout, proof=Proof(self.key, run))

    def register(self, model: str, directory: Path, layout: Layout, *weights: DeviceBytes) -> None:
        self.events.append(f"serve {model}")
        super().register(model, directory, layout, *weights)


def holds() -> None:
    """A proof that does."""


async def served(scheduler: Rig, backend: Proving, *models: tuple[str, Path]) -> dict[str, mpb.ModelState]:
    attached = scheduler.attachments + 1
    async with inside(config(scheduler.folder), backend):
        link = await scheduler.link("a", attached)
        link.send(pb.Catalog(models=[spec(name, directory) for name, directory in models]))
        settled = (mpb.MODEL_PHASE_CACHED, mpb.MODEL_PHASE_FAILED)
        await link.until(lambda: sum(one.phase in settled for one in link.models.values()) == len(models))
        return dict(link.models)


async def test_a_proof_that_held_is_not_made_again_by_later_engines_of_the_node(scheduler: Rig) -> None:
    for times in (1, 0):
        backend = Proving(scheduler.models["llama"], "key", holds)
        await served(scheduler, backend, ("m", scheduler.models["llama"]))
        assert backend.events.count("prove") == times
    other = Proving(scheduler.models["llama"], "of another version", holds)
    await served(scheduler, other, ("m", scheduler.models["llama"]))
    assert other.events == ["prove", "serve m"]


async def test_a_proof_that_fails_is_the_reason_of_its_model_and_is_made_again(scheduler: Rig) -> None:
    def fails() -> None:
        raise ModelError("it computes token 5 otherwise")

    for _ in range(2):
        backend = Proving(scheduler.models["llama"], "key", fails)
        states = await served(
            scheduler, backend, ("bad", scheduler.models["llama"]), ("good", scheduler.models["qwen2"])
        )
        assert states["bad"].reason == "bad: it computes token 5 otherwise"
        assert states["good"].phase == mpb.MODEL_PHASE_CACHED
        assert "prove" in backend.events
        assert "serve bad" not in backend.events


class Held(Proving):
    """No folder is looked at before `may_go`. `described`: the first one would be."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "key", holds)
        self.described, self.may_go = threading.Event(), threading.Event()

    def describe(self, directory: Path, max_model_len: int, task: str = "") -> Layout:
        self.described.set()
        self.may_go.wait(20)
        return super().describe(directory, max_model_len, task)


async def test_models_that_need_no_proof_do_not_wait_for_those_of_another_that_do(scheduler: Rig) -> None:
    backend = Held(scheduler.models["llama"])
    async with inside(config(scheduler.folder), backend):
        link = await scheduler.link("a")
        many = [spec(f"new-{number}", scheduler.models["llama"], length) for number, length in enumerate((64, 96))]
        link.send(pb.Catalog(models=[*many, spec("known", scheduler.models["qwen2"])]))
        await link.until(lambda: len(link.models) == 3)
        backend.may_go.set()
        await link.cached("known", "new-0", "new-1")
    assert backend.events.index("serve known") < backend.events.index("serve new-1")
    assert backend.events.count("prove") == 1, "one key, one proof"


async def test_a_model_that_comes_behind_many_is_served_before_them(scheduler: Rig) -> None:
    backend = Held(scheduler.models["llama"])
    many = [spec(f"many-{number}", scheduler.models["qwen2"], 32 + number) for number in range(20)]
    async with inside(config(scheduler.folder), backend):
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=many))
        await asyncio.to_thread(backend.described.wait, 20)
        link.send(pb.Catalog(models=[*many, spec("late", scheduler.models["qwen2"])]))
        await link.until(lambda: "late" in link.models)
        backend.may_go.set()
        await link.cached("late")
    assert backend.events.index("serve late") == 1, "behind the first one, which was under way"
