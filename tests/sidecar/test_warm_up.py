"""Turns that warm up: first steps of a model run ahead, touch nothing of anybody's, and are not counted as others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sidecar.rig import Link, Rig, config, inside, ready, rig, seq

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.errors import BackendError

pytestmark = pytest.mark.usefixtures("few_rows", "two_kinds")

PROMPT = [5, 17, 23, 42, 8, 99, 140, 7, 61, 12, 33]


@pytest.fixture
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes of one and two sequences are of one kind, of three and four of another, as of 16 and 17 on a GPU."""
    monkeypatch.setattr("aegaeon_sidecar.backends.torch.backend.CAPTURED", (1, 3))


class Seen(TorchBackend):
    """`steps`: how many inputs each had; `broken`: steps of so many raise, where they choose no token."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.steps: list[int] = []
        self.broken = 0

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        self.steps.append(len(inputs))
        if len(inputs) == self.broken and inputs[0].sampler is None:
            raise BackendError("it does not compile")
        return super().launch(model, inputs, after)


async def warmed(link: Link) -> pb.StepDone:
    """One turn that warms up; its only report."""
    turn = link.send(pb.Turn(model="m", slabs=1, warm_up=True))
    await link.done(turn)
    (report,) = link.steps[turn]
    return report


async def served(scheduler: Rig, link: Link, name: str, length: int = 6) -> list[pb.StepDone]:
    """The reports of a turn in which one request is answered whole."""
    link.send(scheduler.open(name, "m", PROMPT, max_tokens=length))
    part = pb.PrefillPart(seq=seq(name), tokens=99)
    turn = link.send(pb.Turn(model="m", prefill=[part], decode=[seq(name)], steps=99, slabs=8))
    await link.done(turn)
    return link.steps[turn]


async def test_each_turn_runs_one_kind_of_step_and_requests_find_none_left(scheduler: Rig) -> None:
    backend = Seen(paged=True)
    async with inside(config(scheduler.folder), backend) as engine:
        link = await ready(scheduler, scheduler.models["llama"])
        assert link.models["m"].cold
        slabs_free = link.memory.slabs_free
        reports = [await warmed(link) for _ in range(3)]
        assert backend.steps == [1, 1, 3]
        assert [report.warm for report in reports] == [False, False, True]
        assert [report.steps for report in reports] == [0, 1, 1]
        assert all(report.first_s > 0.0 == report.decode_s + report.prefill_s for report in reports)
        assert (await warmed(link)).first_s == 0.0  # there is nothing left to do
        assert backend.steps == [1, 1, 3]
        assert not any(report.first_s for report in await served(scheduler, link, "r"))
        await link.done(link.send(pb.Unload(model="m")))
        engine.check()
        assert link.memory.slabs_free == slabs_free + link.models["m"].footprint.weight_slabs


async def test_what_others_have_stays_as_it_is(folder: Path, tiny_models: dict[str, Path]) -> None:
    """Tokens of a sequence between whose turns the model warms up are those of one that had no such turns."""
    found = []
    for warm in (False, True):
        async with rig(folder) as scheduler, inside(config(folder), TorchBackend(paged=True)):
            link = await ready(scheduler, tiny_models["llama"])
            link.send(scheduler.open("r", "m", PROMPT, max_tokens=6))
            parts = [pb.PrefillPart(seq=seq("r"), tokens=99)]
            for prefill, steps in ((parts, 0), ([], 1), ([], 2), ([], 99)):
                await link.done(link.send(pb.Turn(model="m", prefill=prefill, decode=[seq("r")], steps=steps, slabs=8)))
                if warm:
                    await warmed(link)
            found.append(await scheduler.received_tokens("r", 6))
    assert found[0] == found[1]


async def test_a_larger_batch_is_another_kind_and_counted_apart(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder), TorchBackend(paged=True)):
        link = await ready(scheduler, scheduler.models["llama"])
        reports = await served(scheduler, link, "r")
        assert [report.warm for report in reports if report.first_s] == [False, False]
        names = [f"s{i}" for i in range(3)]
        for name in names:
            link.send(scheduler.open(name, "m", PROMPT, max_tokens=4))
        parts = [pb.PrefillPart(seq=seq(name), tokens=99) for name in names]
        turn = link.send(pb.Turn(model="m", prefill=parts, decode=map(seq, names), steps=99, slabs=8))
        await link.done(turn)
        assert [report.warm for report in link.steps[turn] if report.first_s] == [True]


async def test_a_first_step_that_raises_is_left_to_the_first_sequence(
    scheduler: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Seen(paged=True)
    backend.broken = 3
    async with inside(config(scheduler.folder), backend) as engine:
        link = await ready(scheduler, scheduler.models["llama"])
        reports = [await warmed(link) for _ in range(3)]
        assert reports[2].warm
        assert reports[2].first_s == 0.0
        assert "a decode of 3 sequences or more" in caplog.text
        assert len(await scheduler.received_tokens("r", 6) if await served(scheduler, link, "r") else []) == 6
        engine.check()


async def test_its_block_is_accounted_for_while_it_runs(scheduler: Rig) -> None:
    checks: list[Callable[[], None]] = []

    class Checked(Seen):
        def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
            for check in checks:
                check()
            return super().launch(model, inputs, after)

    backend = Checked(paged=True)
    async with inside(config(scheduler.folder), backend) as engine:
        link = await ready(scheduler, scheduler.models["llama"])
        checks.append(engine.check)
        await warmed(link)
        assert backend.steps == [1]
        engine.check()


async def test_without_room_for_a_block_it_fails_and_changes_nothing(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder), TorchBackend(paged=True)) as engine:
        link = await ready(scheduler, scheduler.models["llama"])
        failed = await link.refused(link.send(pb.Turn(model="m", slabs=0, warm_up=True)))
        assert "no KV block is free" in failed.reason
        engine.check()
        assert await served(scheduler, link, "r")


async def test_an_engine_whose_first_steps_take_no_longer_says_so(scheduler: Rig) -> None:
    backend = Seen()
    async with inside(config(scheduler.folder), backend):
        link = await ready(scheduler, scheduler.models["llama"])
        assert not link.models["m"].cold
        assert (await warmed(link)).warm
        assert not backend.steps


async def test_an_engine_that_only_prefills_has_no_decodes_to_warm_up(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, role="prefill"), TorchBackend(paged=True)):
        link = await ready(scheduler, scheduler.models["llama"])
        assert not link.models["m"].cold
