"""Decodes of one shape, as a GPU's are captured: a double of a graph makes the same call on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sidecar.programs import Machine, run_identically
from sidecar.rig import Rig as Scheduler

from aegaeon_proto.engine.sampling import SamplingParams
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.sampling import SamplerState

# Who decodes in each step: sequences join, leave and come back; blocks of 32 tokens begin on the way.
COMPANY = ["a", "ab", "abc", "abc", "bc", "c", "ac", "abc"] * 3
PROMPTS = {"a": list(range(5, 35)), "b": list(range(60, 67)), "c": list(range(100, 158))}
BLOCKS = {"a": [17, 3, 9], "b": [11, 5], "c": [4, 20, 8]}


class Graphs:
    """Captures nothing: a replay is the pass once more. `passes`: how many were captured, `replays`: made again."""

    def __init__(self) -> None:
        self.passes = self.replays = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.passes += 1
        run()

        def replay() -> None:
            self.replays += 1
            run()

        return replay


@pytest.fixture
def fixed(vllm_backend: Any) -> Callable[..., Any]:
    """fixed(graphs, "float32") -> a backend whose decodes are captured so."""

    def opened(graphs: Graphs, dtype: str = "float32") -> Any:
        vllm_backend(dtype)
        from aegaeon_sidecar.backends.vllm.backend import VllmBackend

        return VllmBackend(dtype=dtype, capture=graphs)

    return opened


def samplers() -> dict[str, SamplerState]:
    drawn = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=4)
    return {"a": SamplerState(), "b": SamplerState(SamplingParams(temperature=1.0, seed=3)), "c": SamplerState(drawn)}


class Decoding:
    """Three sequences of a model, step by step; `ahead`: a step is launched before the tokens before it are known."""

    def __init__(self, model: Any, ahead: bool) -> None:
        self.model, self.ahead, self.samplers = model, ahead, samplers()
        self.outputs: dict[str, list[int]] = {name: [] for name in PROMPTS}
        self.before: Any = None
        self.rows: list[str] = []

    def run(self) -> dict[str, list[int]]:
        for name, prompt in PROMPTS.items():
            self.launch(name, [self.part(name, prompt, 0)])
            self.hear()
        for names in COMPANY:
            rows, before = self.rows, self.before
            parts = [self.following(name) if name in rows else self.next_of(name) for name in names]
            if not self.ahead:
                assert before is None
            launched = self.model.backend.launch(self.model.name, parts, before)
            self.hear()
            self.before, self.rows = launched, list(names)
            if not self.ahead:
                self.hear()
        self.hear()
        return self.outputs

    def launch(self, names: str, parts: list[StepInput]) -> None:
        self.before, self.rows = self.model.backend.launch(self.model.name, parts), list(names)

    def hear(self) -> None:
        if self.before is not None:
            for name, chosen in zip(self.rows, self.before.results(), strict=True):
                self.samplers[name].accept(chosen.token)
                self.outputs[name].append(chosen.token)
        self.before, self.rows = None, []

    def next_of(self, name: str) -> StepInput:
        return self.part(name, self.outputs[name][-1:], len(PROMPTS[name]) + len(self.outputs[name]) - 1)

    def following(self, name: str) -> StepInput:
        part = self.part(name, [], len(PROMPTS[name]) + len(self.outputs[name]))
        return StepInput((), part.position, part.blocks, part.sampler, follows=self.rows.index(name))

    def part(self, name: str, tokens: list[int], position: int) -> StepInput:
        return StepInput(tokens, position, np.array(BLOCKS[name], dtype=np.int32), self.samplers[name])


def test_a_first_step_ahead_captures_what_all_decodes_replay(
    family: Any, vllm_backend: Any, fixed: Any, rig: Any
) -> None:
    """As engine/warm_up.py has it: of no sequence, on a block that none of them has."""
    expected = Decoding(rig(vllm_backend(), family("llama")), ahead=False).run()
    graphs = Graphs()
    model = rig(fixed(graphs), family("llama"))
    assert model.backend.captured == (1,)
    assert vllm_backend().captured == ()
    model.backend.launch(model.name, [StepInput((0,), 0, np.array([23], dtype=np.int32), None)]).results()
    assert graphs.passes == 1
    assert Decoding(model, ahead=True).run() == expected
    assert graphs.passes == 1


@pytest.mark.parametrize("name", ["llama", "gemma2", "gptoss"])
def test_decodes_of_one_shape_give_the_tokens_of_those_of_their_own_whoever_they_are_computed_with(
    name: str, family: Any, vllm_backend: Any, fixed: Any, rig: Any
) -> None:
    expected = Decoding(rig(vllm_backend(), family(name)), ahead=False).run()
    graphs = Graphs()
    model = rig(fixed(graphs), family(name))
    assert Decoding(model, ahead=True).run() == expected
    assert (graphs.passes, graphs.replays) == (1, len(COMPANY))
    model.scramble()
    model.load()
    assert Decoding(model, ahead=False).run() == expected
    assert graphs.passes == 1


def test_a_batch_larger_than_the_shape_is_several_passes_of_it(
    family: Any, vllm_backend: Any, fixed: Any, rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aegaeon_sidecar.backends.vllm.fixed._ROWS", 16)
    parts = [StepInput([7 + row], 0, np.array([row], dtype=np.int32), SamplerState()) for row in range(19)]
    expected = rig(vllm_backend(), family("llama")).backend.step("llama", parts)
    graphs = Graphs()
    assert rig(fixed(graphs), family("llama")).backend.step("llama", parts) == expected
    assert (graphs.passes, graphs.replays) == (1, 2)


async def test_an_engine_with_decodes_of_one_shape_launched_ahead_gives_the_tokens_of_each_sequence_alone(
    scheduler: Scheduler, family: Any, vllm_backend: Any, fixed: Any
) -> None:
    machine = Machine(partial(vllm_backend, "float32"), dtype="float32", slab_bytes=256 << 10, slabs=60)
    directories: dict[str, Path] = {name: family(name, "float32") for name in ("llama", "gemma2")}
    graphs = Graphs(), Graphs()
    pair = fixed(graphs[0]), fixed(graphs[1])
    await run_identically(scheduler, directories, 7, *pair, machine)
    assert sum(one.passes for one in graphs) <= 4
    assert all(one.replays for one in graphs)
