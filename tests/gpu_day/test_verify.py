"""Verification tells a token that rounding may have chosen from one that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.gpu_day import models, verify
from benchmarks.gpu_day.answers import Answers, read_answers
from benchmarks.gpu_day.where import Where
from benchmarks.truth_stack import Alone, Reply, prompt_of

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.workload import Arrival, Workload

TINY = replace(models.TINY, fields=models.TINY.fields | {"dtype": "bfloat16"})
LENGTH, OUTPUT = 24, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    models.make(made, TINY, "cpu")
    return made


def greedy(directory: Path, prompt: list[int]) -> list[int]:
    """What transformers says in the engine's dtype, token by token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(OUTPUT):
            tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_models_differ_though_they_share_the_files_of_later_layers(folder: Path) -> None:
    one, two = folder / "one", folder / "two"
    shared = {file.name for file in one.glob("*.safetensors") if file.samefile(two / file.name)}
    assert shared == {"layer-2.safetensors", "layer-3.safetensors"}
    assert greedy(one, prompt_of(0, LENGTH)) != greedy(two, prompt_of(0, LENGTH))


def test_tokens_of_the_engines_dtype_pass_and_a_wrong_one_is_counted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "shape_of", lambda where: TINY)
    where = Where(tmp_path, tmp_path, "cpu", small=True)
    prompt = prompt_of(0, LENGTH)
    right = greedy(folder / "one", prompt)
    wrong = [*right[:-1], (right[-1] + 7) % 2048]
    good, bad = (verify._of_model(where, folder / "one", [(prompt, output)]) for output in (right, wrong))
    assert good.different == 0
    assert good.identical + good.ties == OUTPUT
    assert good.noise > 0
    assert bad.different == 1


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    workload = Workload(("one", "two"), (Arrival(0.5, 1, 8, 2),), ("one", "two"))
    reply = Reply(0.01, [0.2, 0.3], [5, 6])
    answers = Answers("split", Slo(2.0, 0.1), workload, [reply], 3, {"one": Alone(0.1, 0.01, 0.02)})
    answers.write(tmp_path / "pool.json")
    assert read_answers(tmp_path / "pool.json") == answers
