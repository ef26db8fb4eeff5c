"""The rules of the wire, on one sidecar alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sidecar.late import LateBackend
from sidecar.rig import SLAB, Link, Rig, config, inside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends import Backend
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.engine.engine import Engine

PROMPT = [5, 17, 23, 42, 8, 99, 140, 7, 61, 12, 33]
MANY = 10_000


@dataclass
class Sidecar:
    """One sidecar with the models of the test in its host cache."""

    engine: Engine
    link: Link
    scheduler: Rig

    def turn(
        self, *names: str, steps: int = 0, prefill: bool = True, after: tuple[int, ...] = (), slabs: int = 24
    ) -> int:
        parts = [pb.PrefillPart(seq=seq(name), tokens=99) for name in names] if prefill else []
        decode = [seq(name) for name in names]
        return self.link.send(pb.Turn(model="m", prefill=parts, decode=decode, steps=steps, slabs=slabs), after=after)


@asynccontextmanager
async def serving(
    scheduler: Rig, *directories: Path, backend: Backend | None = None, **changes: object
) -> AsyncIterator[Sidecar]:
    """A sidecar that serves these models as m, m1, ...; m is resident."""
    async with inside(config(scheduler.folder, **changes), backend) as engine:
        link = await scheduler.link("a")
        names = ["m", *(f"m{i}" for i in range(1, len(directories)))]
        link.send(pb.Catalog(models=[spec(n, d) for n, d in zip(names, directories, strict=True)]))
        await link.cached(*names)
        await link.done(link.send(pb.Load(model="m", slabs=32)))
        yield Sidecar(engine, link, scheduler)


@pytest.fixture(params=[TorchBackend, LateBackend], ids=["waited for", "launched ahead"])
async def sidecar(
    scheduler: Rig, make_model: Callable[..., Path], request: pytest.FixtureRequest
) -> AsyncIterator[Sidecar]:
    roomy = make_model("qwen2", max_position_embeddings=4096)  # turns that do not end before their quota
    async with serving(scheduler, roomy, scheduler.models["llama"], backend=request.param()) as made:
        yield made


async def test_an_older_epoch_is_refused_everywhere(sidecar: Sidecar) -> None:
    link = sidecar.link
    link.send(sidecar.scheduler.open("r", "m", PROMPT, epoch=5))
    await link.done(sidecar.turn("r"))
    for body in (
        sidecar.scheduler.open("r", "m", PROMPT, epoch=4),
        pb.SwapOut(seq=seq("r"), epoch=4),
        pb.SwapIn(seq=seq("r"), epoch=4),
        pb.Adopt(seq=seq("r"), epoch=4),
        pb.Close(seq=seq("r"), epoch=4),
    ):
        assert (await link.refused(link.send(body))).kind == pb.FAILURE_KIND_STALE
    assert (await link.refused(link.send(pb.SwapOut(seq=seq("r"), epoch=6)))).kind == pb.FAILURE_KIND_UNKNOWN
    await link.done(link.send(pb.SwapOut(seq=seq("r"), epoch=5)))


async def test_commands_that_depend_on_a_failure_are_skipped_and_the_rest_continues(sidecar: Sidecar) -> None:
    link = sidecar.link
    bad = link.send(pb.Load(model="unknown", slabs=9))
    second = link.send(pb.Load(model="m1", slabs=32), after=[bad])
    third = link.send(pb.SwapOut(seq=seq("r"), epoch=1), after=[second])
    free = link.send(pb.Unload(model="m"))
    assert (await link.refused(bad)).kind == pb.FAILURE_KIND_UNKNOWN
    assert (await link.outcome(second)).skipped.because == bad
    assert (await link.outcome(third)).skipped.because == second
    await link.done(free)
    late = link.send(pb.Unload(model="m"), after=[third])
    assert (await link.outcome(late)).skipped.because == third


async def test_a_grant_that_is_too_small_fails_and_changes_nothing(sidecar: Sidecar) -> None:
    link = sidecar.link
    before = link.memory.slabs_free
    load = await link.refused(link.send(pb.Load(model="m1", slabs=1)))
    assert load.kind == pb.FAILURE_KIND_NO_MEMORY
    assert load.memory.slabs_free == before
    link.send(sidecar.scheduler.open("r", "m", PROMPT))
    await link.done(sidecar.turn("r"))
    await link.done(link.send(pb.SwapOut(seq=seq("r"), epoch=1)))
    assert (await link.refused(link.send(pb.SwapIn(seq=seq("r"), epoch=1)))).kind == pb.FAILURE_KIND_NO_MEMORY
    sidecar.engine.check()
    await link.done(link.send(pb.SwapIn(seq=seq("r"), epoch=1, slabs=1)))


async def test_a_sequence_that_cannot_grow_starves_and_loses_nothing(sidecar: Sidecar) -> None:
    link = sidecar.link
    for name in ("r", "whole"):
        link.send(sidecar.scheduler.open(name, "m", PROMPT, max_tokens=60))
    starved = sidecar.turn("r", steps=99, slabs=1)  # one slab holds few blocks of this shape
    await link.done(starved)
    last = [p for s in link.steps[starved] for p in s.progress][-1]
    assert last.starved
    assert len(sidecar.scheduler.tokens["r", 0]) < 60
    await link.done(sidecar.turn("r", steps=99, prefill=False, slabs=8))
    await link.done(sidecar.turn("whole", steps=99))
    assert await sidecar.scheduler.received_tokens("r", 60) == await sidecar.scheduler.received_tokens("whole", 60)


async def test_a_queued_command_is_cancelled_and_its_dependants_are_skipped(sidecar: Sidecar) -> None:
    link = sidecar.link
    link.send(sidecar.scheduler.open("r", "m", PROMPT, max_tokens=MANY))
    turn = sidecar.turn("r", steps=MANY)
    load = link.send(pb.Load(model="m1", slabs=32), after=[turn])
    unload = link.send(pb.Unload(model="m1"), after=[load])
    link.send(pb.CancelCommand(id=load))
    assert (await link.refused(load)).kind == pb.FAILURE_KIND_CANCELLED
    assert (await link.outcome(unload)).skipped.because == load
    link.send(pb.Amend(turn=turn, steps=0))
    await link.done(turn)


async def test_a_running_turn_is_cancelled_at_a_token_boundary_and_reports_its_progress(sidecar: Sidecar) -> None:
    link = sidecar.link
    link.send(sidecar.scheduler.open("r", "m", PROMPT, max_tokens=MANY))
    turn = sidecar.turn("r", steps=MANY)
    waits = sidecar.turn("r", steps=1, prefill=False, after=(turn,))
    await sidecar.scheduler.received_tokens("r", 3)
    link.send(pb.CancelCommand(id=turn))
    assert (await link.refused(turn)).kind == pb.FAILURE_KIND_CANCELLED
    assert (await link.outcome(waits)).skipped.because == turn
    count = [p for s in link.steps[turn] for p in s.progress][-1].output_tokens
    assert len(await sidecar.scheduler.received_tokens("r", count)) == count


async def test_a_turn_waits_for_a_load_under_way_and_fails_without_one(sidecar: Sidecar) -> None:
    link = sidecar.link
    await link.done(link.send(pb.Unload(model="m")))
    link.send(sidecar.scheduler.open("r", "m", PROMPT, max_tokens=4))
    assert (await link.refused(sidecar.turn("r", steps=9))).kind == pb.FAILURE_KIND_UNKNOWN
    link.send(pb.Load(model="m", slabs=32))
    await link.done(sidecar.turn("r", steps=9))
    assert len(await sidecar.scheduler.received_tokens("r", 4)) == 4


async def test_a_load_that_waits_for_the_turn_that_waits_for_it_does_not_stop_the_lanes(sidecar: Sidecar) -> None:
    link = sidecar.link
    link.send(sidecar.scheduler.open("r", "m1", PROMPT, max_tokens=4))
    turn = link.send(pb.Turn(model="m1", decode=[seq("r")], steps=1), after=[])
    load = link.send(pb.Load(model="m1", slabs=32), after=[turn])
    assert (await link.refused(turn)).kind == pb.FAILURE_KIND_UNKNOWN
    assert (await link.outcome(load)).skipped.because == turn


async def test_a_sequence_joins_at_a_token_boundary_once_its_kv_is_in(sidecar: Sidecar) -> None:
    link = sidecar.link
    for name in ("r", "late"):
        link.send(sidecar.scheduler.open(name, "m", PROMPT, max_tokens=80))
    await link.done(sidecar.turn("r", "late"))
    await link.done(link.send(pb.SwapOut(seq=seq("late"), epoch=1)))
    turn = sidecar.turn("r", steps=200, prefill=False)
    back = link.send(pb.SwapIn(seq=seq("late"), epoch=1, slabs=4))
    link.send(pb.Amend(turn=turn, join=[seq("late")]))
    await link.done(back)
    await link.done(turn)
    assert await sidecar.scheduler.received_tokens("late", 80) == await sidecar.scheduler.received_tokens("r", 80)


async def test_a_part_of_a_prompt_that_is_in_does_nothing(sidecar: Sidecar) -> None:
    link = sidecar.link
    for name in ("r", "whole"):
        link.send(sidecar.scheduler.open(name, "m", PROMPT, max_tokens=8))
    await link.done(sidecar.turn("r", steps=0))
    late = link.send(pb.Turn(model="m", prefill=[pb.PrefillPart(seq=seq("r"), tokens=4)], slabs=8))
    await link.done(late)
    assert len(await sidecar.scheduler.received_tokens("r", 1)) == 1
    assert not [p for s in link.steps[late] for p in s.progress]
    await link.done(sidecar.turn("r", steps=9, prefill=False))
    await link.done(sidecar.turn("whole", steps=9))
    assert await sidecar.scheduler.received_tokens("r", 8) == await sidecar.scheduler.received_tokens("whole", 8)


async def test_amend_lets_a_sequence_leave_and_ends_a_turn(sidecar: Sidecar) -> None:
    link = sidecar.link
    for name in ("r", "s"):
        link.send(sidecar.scheduler.open(name, "m", PROMPT, max_tokens=MANY))
    turn = sidecar.turn("r", "s", steps=MANY)
    await sidecar.scheduler.received_tokens("s", 2)
    link.send(pb.Amend(turn=turn, leave=[seq("s")]))
    await sidecar.scheduler.received_tokens("r", len(sidecar.scheduler.output("r")) + 20)
    link.send(pb.Amend(turn=turn, steps=0))
    await link.done(turn)
    totals = {p.seq.request: p.output_tokens for s in link.steps[turn] for p in s.progress}
    assert totals["r"] > totals["s"]


async def test_a_copy_out_of_a_running_turn_ends_that_sequences_part_in_it(sidecar: Sidecar) -> None:
    link = sidecar.link
    link.send(sidecar.scheduler.open("r", "m", PROMPT, max_tokens=MANY))
    turn = sidecar.turn("r", steps=MANY)
    await sidecar.scheduler.received_tokens("r", 2)
    handle = (await link.done(link.send(pb.SwapOut(seq=seq("r"), epoch=1)))).done.handle
    await link.done(turn)
    assert handle.kv_tokens == len(PROMPT) + len(handle.output) - 1
    assert await sidecar.scheduler.received_tokens("r", len(handle.output)) == list(handle.output)


async def test_close_frees_both_tiers_also_in_the_middle_of_a_turn(sidecar: Sidecar) -> None:
    link, engine = sidecar.link, sidecar.engine
    for name in ("r", "s"):
        link.send(sidecar.scheduler.open(name, "m", PROMPT, max_tokens=MANY))
    await link.done(sidecar.turn("r", "s"))
    await link.done(link.send(pb.SwapOut(seq=seq("s"), epoch=1)))
    turn = sidecar.turn("r", steps=MANY, prefill=False)
    await sidecar.scheduler.received_tokens("r", 4)
    for name in ("r", "s"):
        link.send(pb.Close(seq=seq(name), epoch=1))
    await link.done(turn)
    await link.done(link.send(pb.Unload(model="m")))
    engine.check()
    assert engine.state.kv.device.slabs_free == engine.state.kv.device.pool.total
    assert engine.state.kv.host.slabs_free == engine.state.kv.host.pool.total


async def test_a_stop_id_ends_a_sequence_and_is_sent(sidecar: Sidecar) -> None:
    link, scheduler = sidecar.link, sidecar.scheduler
    link.send(scheduler.open("free", "m", PROMPT, max_tokens=8))
    await link.done(sidecar.turn("free", steps=9))
    stop = (await scheduler.received_tokens("free", 8))[3]
    first = scheduler.output("free").index(stop)
    link.send(scheduler.open("stopped", "m", PROMPT, max_tokens=8, stop_ids=[stop]))
    await link.done(sidecar.turn("stopped", steps=9))
    assert await scheduler.received_tokens("stopped", first + 1) == scheduler.output("free")[: first + 1]
    assert scheduler.tokens["stopped", 0][first].finish == mpb.FINISH_REASON_STOP


async def test_models_removed_from_the_catalog_free_their_memory(sidecar: Sidecar) -> None:
    link, engine = sidecar.link, sidecar.engine
    link.send(sidecar.scheduler.open("r", "m", PROMPT, max_tokens=MANY))
    turn = sidecar.turn("r", steps=MANY)
    await sidecar.scheduler.received_tokens("r", 2)
    link.send(pb.Catalog())
    await link.done(turn)
    await link.until(lambda: link.memory.slabs_free == engine.state.kv.device.pool.total)
    assert (await link.refused(link.send(pb.Load(model="m", slabs=32)))).kind == pb.FAILURE_KIND_UNKNOWN


async def test_a_model_that_cannot_be_served_is_failed_with_its_reason_while_others_serve(
    scheduler: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with inside(config(scheduler.folder)):
        link = await scheduler.link("a")
        models = [
            spec("gone", scheduler.folder / "nowhere"),
            spec("empty", scheduler.folder),
            spec("m", scheduler.models["llama"]),
        ]
        link.send(pb.Catalog(models=models))
        await link.cached("m")
        for name, word in (("gone", "nowhere"), ("empty", "config.json")):
            assert link.models[name].phase == mpb.MODEL_PHASE_FAILED
            assert not link.models[name].unsupported, "its files may come"
            assert word in link.models[name].reason
            assert any(name in line and word in line for line in caplog.messages)


@pytest.mark.parametrize(("beside", "word"), [(0, "raise device_bytes"), (1, "")])
async def test_a_model_that_leaves_no_slab_for_kv_blocks_is_failed(scheduler: Rig, beside: int, word: str) -> None:
    weights = -(-(scheduler.models["llama"] / "model.safetensors").stat().st_size // SLAB)
    async with inside(config(scheduler.folder, memory={"device_bytes": (weights + beside) * SLAB})):
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[spec("m", scheduler.models["llama"])]))
        await link.until(lambda: "m" in link.models and link.models["m"].phase != mpb.MODEL_PHASE_FETCHING)
        assert word in link.models["m"].reason
        assert (link.models["m"].phase == mpb.MODEL_PHASE_FAILED) == bool(word)
        assert link.models["m"].unsupported == bool(word)


async def test_a_failed_model_is_tried_again_when_a_catalog_asks_for_it_and_another_objective_changes_nothing(
    scheduler: Rig,
) -> None:
    async with inside(config(scheduler.folder)):
        link = await scheduler.link("a")
        late = spec("late", scheduler.folder / "late")
        link.send(pb.Catalog(models=[late, spec("m", scheduler.models["llama"])]))
        await link.cached("m")
        await link.done(link.send(pb.Load(model="m", slabs=32)))
        assert link.models["late"].phase == mpb.MODEL_PHASE_FAILED
        (scheduler.folder / "late").symlink_to(scheduler.models["qwen3"])
        faster = spec("m", scheduler.models["llama"])
        faster.tbt_s = 0.01
        link.send(pb.Catalog(models=[late, faster], retry=True))
        await link.until(lambda: link.models["late"].phase == mpb.MODEL_PHASE_CACHED)
        assert (await link.done(link.send(pb.Load(model="m", slabs=32)))).done.bytes == 0  # it was resident all along


async def test_an_engine_is_heard_while_a_turn_runs_by_the_turns_reports_or_heartbeats(sidecar: Sidecar) -> None:
    link = sidecar.link
    link.send(sidecar.scheduler.open("r", "m", PROMPT, max_tokens=MANY))
    turn = sidecar.turn("r", steps=MANY)
    await link.until(lambda: link.heartbeats + len(link.steps.get(turn, ())) >= 4)
    link.send(pb.Amend(turn=turn, steps=0))
    await asyncio.gather(link.done(turn))


async def test_a_load_and_copies_are_done_while_a_turn_runs(sidecar: Sidecar) -> None:
    link = sidecar.link
    for name in ("r", "s"):
        link.send(sidecar.scheduler.open(name, "m", PROMPT, max_tokens=MANY))
    await link.done(sidecar.turn("r", "s"))
    turn = sidecar.turn("r", steps=MANY, prefill=False)
    await sidecar.scheduler.received_tokens("r", 3)
    for body in (
        pb.Load(model="m1", slabs=32),
        pb.SwapOut(seq=seq("s"), epoch=1),
        pb.SwapIn(seq=seq("s"), epoch=1, slabs=4),
        pb.Unload(model="m1"),
    ):
        await link.done(link.send(body))
    assert turn not in link.outcomes
    before = len(sidecar.scheduler.tokens["r", 0])
    await sidecar.scheduler.received_tokens("r", before + 3)
    link.send(pb.Amend(turn=turn, steps=0))
    await link.done(turn)
