"""A model that ends engines is failed with the signal, after two deaths; others that were there are cleared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from sidecar.rig import Link, Rig, config, outside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.domain.errors import LethalError, SuspectError
from aegaeon_sidecar.weights.deaths import CALM_S, MOST_WAIT_S, Books, Deaths

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
ENDING = """
import faulthandler, os, sys, time
from contextlib import ExitStack
from pathlib import Path
from aegaeon_sidecar.weights.deaths import Deaths
folder, turns, prepared, way = sys.argv[1:]
deaths, stack = Deaths(Path(folder), "a", time.monotonic), ExitStack()
deaths.watch()
*done, last = turns.split(",")
for model in done:
    with deaths.computing(model):
        pass
if prepared:
    stack.enter_context(deaths.preparing(prepared))
if last:
    stack.enter_context(deaths.computing(last))
{"segv": faulthandler._sigsegv, "abort": os.abort, "kill": lambda: os.kill(os.getpid(), 9)}[way]()
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


End = Callable[..., Deaths]


@pytest.fixture
def ended(tmp_path: Path) -> End:
    """ended("a,b", preparing="c", way="segv"): what the next process knows, after one that a real signal ended while it
    computed the last of these models."""

    def end(turns: str, preparing: str = "", way: str = "segv", clock: Clock | None = None) -> Deaths:
        command = [sys.executable, "-c", ENDING, str(tmp_path), turns, preparing, way]
        assert subprocess.run(command, stderr=subprocess.PIPE, check=False).returncode < 0
        return Deaths(tmp_path, "a", clock or Clock())

    return end


def test_a_model_that_is_computed_at_two_deaths_is_failed_with_the_signal_until_it_is_forgiven(ended: End) -> None:
    ended("bad", way="abort").check("bad")
    deaths = ended("bad", way="abort")
    with pytest.raises(LethalError, match="ended 2 times by SIGABRT; it is tried again when its files change"):
        deaths.check("bad")
    deaths.check("good")
    deaths.forgive("bad")
    deaths.check("bad")


def test_of_two_models_that_were_there_one_waits_until_the_other_has_run_without_it(ended: End) -> None:
    clock = Clock()
    deaths = ended("good,bad", clock=clock)
    deaths.check("bad")
    with pytest.raises(SuspectError, match="computed it or bad was ended by a signal; bad runs alone first"):
        deaths.check("good")
    with deaths.computing("bad"):
        clock.now += CALM_S
    deaths.check("good")
    deaths.check("bad")


def test_nobody_waits_for_long_for_a_model_that_is_not_asked_for(ended: End) -> None:
    clock = Clock()
    deaths = ended("good,gone", clock=clock)
    clock.now = MOST_WAIT_S
    deaths.check("good")


def test_a_model_that_ends_the_engine_alone_clears_the_one_that_waited_for_it(ended: End) -> None:
    ended("good,bad")
    deaths = ended("other,bad")
    with pytest.raises(LethalError, match="SIGSEGV"):
        deaths.check("bad")
    for innocent in ("good", "other"):
        deaths.check(innocent)


def test_a_model_that_is_being_proved_is_a_suspect_as_well(ended: End) -> None:
    with pytest.raises(SuspectError, match="served runs alone first"):
        ended("served", preparing="new").check("new")
    with pytest.raises(LethalError):
        ended("", preparing="new").check("new")


@pytest.mark.parametrize(("turns", "way"), [("bad", "kill"), ("bad,", "segv")])
def test_a_process_that_is_killed_or_was_at_rest_says_nothing_of_a_model(ended: End, turns: str, way: str) -> None:
    for _ in range(2):
        ended(turns, way=way).check("bad")


def test_another_engine_of_the_node_that_had_a_failed_model_still_accuses_no_other() -> None:
    books = Books(failed={"bad": "SIGSEGV"})
    books.died(("bad", "good"), "SIGSEGV")
    assert books == Books(failed={"bad": "SIGSEGV"})


def test_books_hold_no_circle_of_models_that_wait_for_each_other() -> None:
    books = Books()
    for suspects in (("a", "b"), ("b", "a"), ("a", "b")):
        books.died(suspects, "SIGSEGV")
        assert len(books.waits) == 1


async def _turn(link: Link, scheduler: Rig, model: str) -> int:
    load = link.send(pb.Load(model=model, slabs=32))
    link.send(scheduler.open(model, model, PROMPT, max_tokens=4))
    parts = [pb.PrefillPart(seq=seq(model), tokens=8)]
    return link.send(pb.Turn(model=model, prefill=parts, decode=[seq(model)], steps=4, slabs=16), after=[load])


async def _catalog(scheduler: Rig, models: Sequence[tuple[str, Path]], attached: int) -> Link:
    link = await scheduler.link("a", attached)
    link.send(pb.Catalog(models=[spec(name, directory) for name, directory in models]))
    settled = (mpb.MODEL_PHASE_CACHED, mpb.MODEL_PHASE_FAILED)
    await link.until(lambda: sum(one.phase in settled for one in link.models.values()) == len(models))
    return link


@pytest.mark.slow
async def test_an_engine_that_a_models_kernels_ended_twice_serves_the_others(scheduler: Rig) -> None:
    models = [("bad", scheduler.models["llama"]), ("good", scheduler.models["qwen2"])]
    for life in (1, 2):
        async with outside(config(scheduler.folder), scheduler.folder, module="sidecar.segfault_engine") as process:
            link = await _catalog(scheduler, models, life)
            if life == 1:
                await link.done(await _turn(link, scheduler, "good"))
                await link.done(link.send(pb.Unload(model="good")))
            else:
                assert "bad runs alone first" in link.models["good"].reason
            await _turn(link, scheduler, "bad")
            assert await process.wait() == -11
    async with outside(config(scheduler.folder), scheduler.folder, module="sidecar.segfault_engine"):
        link = await _catalog(scheduler, models, 3)
        assert link.models["bad"].phase == mpb.MODEL_PHASE_FAILED
        assert "bad: engines that computed it were ended 2 times by SIGSEGV" in link.models["bad"].reason
        await link.done(await _turn(link, scheduler, "good"))
