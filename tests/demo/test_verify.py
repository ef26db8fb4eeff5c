"""The check against transformers, on random models, whose every logit counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aegaeon_cli.demo.verify import eos_id, load_model, load_tokenizer, verify, with_end

PROMPT = [5, 77, 130, 9]


def _greedy(directory: Path, tokens: int) -> list[int]:
    model = load_model(directory)
    ids = torch.tensor([PROMPT])
    out = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
    )
    return [int(token) for token in out[0][len(PROMPT) :]]


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_transformers_generates_is_identical(tiny_models: dict[str, Path], architecture: str) -> None:
    output = [token for token in _greedy(tiny_models[architecture], 24) if token != 2]
    verdict = verify(tiny_models[architecture], PROMPT, output[:8])
    assert verdict.identical
    assert verdict.positions == 8
    assert verdict.first_difference is None


@pytest.mark.parametrize("where", [0, 7, 11])
def test_one_other_token_is_found_at_its_place(tiny_models: dict[str, Path], where: int) -> None:
    output = _greedy(tiny_models["qwen3"], 12)
    output[where] = (output[where] + 1) % 384
    verdict = verify(tiny_models["qwen3"], PROMPT, output)
    assert not verdict.identical
    assert verdict.first_difference == where
    assert verdict.gap > 1e-4


def test_the_margin_of_the_first_token_that_differs_is_reported(tiny_models: dict[str, Path]) -> None:
    output = _greedy(tiny_models["qwen3"], 12)
    output[2:] = [(token + 1) % 384 for token in output[2:]]
    alone, whole = (verify(tiny_models["qwen3"], PROMPT, tokens) for tokens in (output[:3], output))
    assert (alone.first_difference, whole.first_difference) == (2, 2)
    assert whole.gap == pytest.approx(alone.gap)


def test_a_token_behind_by_less_than_the_tie_is_counted_apart(tiny_models: dict[str, Path]) -> None:
    output = _greedy(tiny_models["llama"], 4)
    output[-1] = (output[-1] + 1) % 384
    verdict = verify(tiny_models["llama"], PROMPT, output, tie=1e6)
    assert verdict.identical
    assert verdict.ties == 1


def test_the_prompt_matters(tiny_models: dict[str, Path]) -> None:
    output = _greedy(tiny_models["mistral"], 12)
    assert not verify(tiny_models["mistral"], [*PROMPT[:-1], 10], output).identical


def test_an_output_without_tokens_has_nothing_to_differ_in(tiny_models: dict[str, Path]) -> None:
    assert verify(tiny_models["llama"], PROMPT, []).identical


def test_the_end_token_is_checked_too_when_it_ended_the_output(tiny_models: dict[str, Path]) -> None:
    eos = eos_id(tiny_models["llama"])
    assert with_end([4, 5], "stop", eos) == [4, 5, eos]
    assert with_end([4, eos], "stop", eos) == [4, eos]
    assert with_end([4, 5], "length", eos) == [4, 5]


def test_chat_prompts_are_those_of_apply_chat_template(tiny_models: dict[str, Path]) -> None:
    from aegaeon_cli.demo.verify import chat_ids

    messages = [{"role": "user", "content": "Größe 🙂?"}]
    encoded = load_tokenizer(tiny_models["qwen2"]).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True
    )
    assert chat_ids(tiny_models["qwen2"], "Größe 🙂?") == encoded["input_ids"]  # type: ignore[call-overload]
