"""A step that goes on from the one before gives each sequence the tokens that it has alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aegaeon_proto.engine.sampling import SamplingParams
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.sampling import SamplerState

STEPS = 80  # more than attention's metadata is good for
BLOCK_TOKENS = 32
PROMPTS = [list(range(5, 35)), list(range(60, 67)), list(range(100, 158))]
BLOCKS = [np.array(some, dtype=np.int32) for some in ([17, 3, 9, 1], [11, 5, 2], [4, 20, 8, 7, 6])]


def samplers(kind: str) -> list[SamplerState]:
    if kind == "greedy":
        return [SamplerState() for _ in PROMPTS]
    drawn = SamplerState(SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=4))
    return [SamplerState(SamplingParams(repetition_penalty=1.3, min_tokens=3, stop_ids=(7,))), drawn, SamplerState()]


def alone(model: Any, row: int, sampler: SamplerState) -> list[int]:
    """Its tokens, every step made of its inputs; a step of others lies between."""
    tokens, position, output = PROMPTS[row], 0, []
    for _ in range(STEPS + 1):
        (chosen,) = model.backend.step(model.name, [StepInput(tokens, position, BLOCKS[row], sampler)])
        model.backend.step(model.name, [StepInput([1], 0, np.array([23], dtype=np.int32), None)])
        sampler.accept(chosen.token)
        position += len(tokens)
        tokens = [chosen.token]
        output.append(chosen.token)
    return output


def together(model: Any, all_samplers: list[SamplerState]) -> tuple[list[list[int]], int]:
    """The tokens of all, and how many steps went on: those in which no block begins."""
    outputs: list[list[int]] = [[] for _ in PROMPTS]
    launched, went_on = None, 0
    for step in range(STEPS + 1):
        positions = [0 if step == 0 else len(prompt) + step - 1 for prompt in PROMPTS]
        again = None
        if step > 1 and all(position % BLOCK_TOKENS for position in positions):
            assert launched is not None
            again = model.backend.again(model.name, launched)
            assert again is not None
            went_on += 1
        rows = zip(PROMPTS, positions, BLOCKS, all_samplers, outputs, strict=True)
        parts = [
            StepInput(output[-1:] or prompt, position, blocks, sampler)
            for prompt, position, blocks, sampler, output in rows
        ]
        launched = again or model.backend.launch(model.name, parts)
        for sampler, output, chosen in zip(all_samplers, outputs, launched.results(), strict=True):
            sampler.accept(chosen.token)
            output.append(chosen.token)
    return outputs, went_on


@pytest.mark.parametrize("kind", ["greedy", "drawn"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gptoss"])
def test_steps_that_go_on_give_the_tokens_of_each_sequence_alone(
    name: str, kind: str, family: Any, vllm_backend: Any, rig: Any
) -> None:
    model = rig(vllm_backend(), family(name))
    expected = [alone(model, row, sampler) for row, sampler in enumerate(samplers(kind))]
    outputs, went_on = together(model, samplers(kind))
    assert outputs == expected
    assert went_on > STEPS * 0.8


def test_a_step_does_not_go_on_from_one_that_is_not_the_last_of_its_model(
    family: Any, vllm_backend: Any, rig: Any
) -> None:
    model = rig(vllm_backend(), family("llama"))

    def launch(position: int, sampler: SamplerState | None) -> Any:
        part = StepInput([9], position, BLOCKS[0], sampler)
        return model.backend.launch(model.name, [part])

    first = launch(0, SamplerState())
    second = model.backend.again(model.name, first)
    assert second is not None
    assert model.backend.again(model.name, first) is None
    assert model.backend.again(model.name, second) is not None
    launch(40, SamplerState())
    assert model.backend.again(model.name, second) is None
    assert model.backend.again(model.name, launch(0, None)) is None
