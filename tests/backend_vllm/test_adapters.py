"""Adapters compute what transformers computes with them merged into the weights, alone and in any company."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_vllm.adapters import make_adapter, merge
from backend_vllm.reference import logits as reference_logits

from aegaeon_sidecar.backends import AdapterLimits, AdapterWeights, StepInput
from aegaeon_sidecar.domain.errors import BackendError, ModelError
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing

TOKENS = [5 + 3 * j % 240 for j in range(50)]
LIMITS = AdapterLimits(max_rank=16, slots=2, nbytes=8 << 20)


def loaded(rig: Any, directory: Path) -> AdapterWeights:
    layout = rig.backend.describe_adapter(rig.name, directory)
    image = np.full(layout.image_bytes, 255, dtype=np.uint8)
    key = fill(look(directory, layout), [image], StageRing())
    return AdapterWeights(key, layout, (directory / "adapter_config.json").read_bytes(), image)


class World:
    """A base and three adapters; more than there are slots."""

    def __init__(self, rig: Any, base: Path, folder: Path, **settings: Any) -> None:
        self.rig, self.base = rig, base
        self.folders = {
            "a": make_adapter(base, folder / "a", seed=1, rank=8, **settings),
            "b": make_adapter(base, folder / "b", seed=2, rank=16, **settings),
            "c": make_adapter(base, folder / "c", seed=3, rank=4, **settings | {"targets": ("q_proj", "v_proj")}),
        }
        self.adapters = {name: loaded(rig, directory) for name, directory in self.folders.items()}

    def part(self, name: str, first: int, tokens: list[int], position: int) -> StepInput:
        """A step of a sequence in the two blocks from `first` on. "": without an adapter."""
        blocks = np.array([first, first + 1], dtype=np.int32)
        return StepInput(tokens, position, blocks, None, adapter=self.adapters.get(name))

    def logits(self, *parts: StepInput) -> Any:
        return self.rig.backend.logits(self.rig.name, list(parts))

    def alone(self, name: str) -> list[Any]:
        """Of a prompt, and of a decode behind it."""
        prompt = self.logits(self.part(name, 1, TOKENS[:40], 0))[0]
        return [prompt, *(self.logits(self.part(name, 1, [TOKENS[i]], i))[0] for i in range(40, 50))]


@pytest.fixture
def world(rig: Callable[..., Any], family: Any, vllm_backend: Any, tmp_path: Path) -> Callable[..., World]:
    def made(name: str, dtype: str = "float32", **settings: Any) -> World:
        base = family(name, dtype)
        return World(rig(vllm_backend(dtype, adapters=LIMITS), base), base, tmp_path, **settings)

    return made


def test_adapters_give_the_logits_of_transformers(world: Callable[..., World], tmp_path: Path) -> None:
    made = world("llama")
    merged = [merge(made.base, directory, tmp_path / f"merged-{name}") for name, directory in made.folders.items()]
    expected = reference_logits([made.base, *merged], TOKENS, tmp_path / "reference.npz")
    for name, at in (("", "llama"), ("a", "merged-a"), ("b", "merged-b"), ("c", "merged-c"), ("", "llama")):
        found = made.alone(name)
        for row, logits in zip(expected[at][39:], found, strict=True):
            assert np.abs(logits.numpy() - row).max() < 2e-4  # adding up in another order, deeper in the sums
    assert np.abs(expected["merged-a"] - expected["llama"]).max() > 0.1


ATTENTION = {"targets": ("q_proj", "k_proj", "v_proj", "o_proj")}


@pytest.mark.parametrize(
    ("name", "dtype", "settings"),
    [("llama", "float32", {}), ("qwen3", "bfloat16", {}), ("mixtral", "float32", ATTENTION)],
)
def test_a_batch_of_adapters_and_none_gives_the_bits_of_each_alone(
    world: Callable[..., World], name: str, dtype: str, settings: Any
) -> None:
    made = world(name, dtype, **settings)
    alone = {one: made.alone(one) for one in ("", "a", "b", "c")}
    made.rig.scramble()
    made.rig.load()
    company = ["b", "", "a", "c", "b", "a"]
    made.rig.kv[:] = 255
    for number, one in enumerate(company):
        made.logits(made.part(one, 2 * number + 3, TOKENS[:40], 0))
    for step, position in enumerate(range(40, 50), start=1):
        parts = [made.part(one, 2 * i + 3, [TOKENS[position]], position) for i, one in enumerate(company)]
        order = np.random.default_rng(step).permutation(len(parts))
        cut = step % len(parts)
        for numbers in (order[:cut], order[cut:]):
            rows = made.logits(*(parts[i] for i in numbers))
            for i, row in zip(numbers, rows, strict=True):
                assert row.equal(alone[company[i]][step]), (company[i], step)


def changed_settings(directory: Path, **fields: Any) -> None:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def truncated(directory: Path, base: Path) -> None:
    path = directory / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_a_matrix(directory: Path, base: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = directory / "adapter_model.safetensors"
    tensors = load_file(path)
    del tensors[max(tensors)]
    save_file(tensors, path)


def of_another_base(directory: Path, base: Path) -> None:
    (directory / "adapter_model.safetensors").unlink()
    (directory / "adapter_config.json").unlink()
    directory.rmdir()
    make_adapter(base.parent / "qwen3", directory, seed=4)


FAULTS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "rank": (lambda at, _: changed_settings(at, r=64), "rank 64 is greater than max_lora_rank 16"),
    "other-rank": (lambda at, _: changed_settings(at, r=4), r"must be \[4, "),
    "settings": (lambda at, _: (at / "adapter_config.json").write_text("[]"), "is not a JSON object"),
    "no-rank": (lambda at, _: (at / "adapter_config.json").write_text("{}"), "Missing required"),
    "dora": (lambda at, _: changed_settings(at, use_dora=True), "DoRA"),
    "whole-layers": (lambda at, _: changed_settings(at, modules_to_save=["lm_head"]), "modules_to_save"),
    "nonsense": (lambda at, _: changed_settings(at, r="many"), "adapter_config.json"),
    "no-settings": (lambda at, _: (at / "adapter_config.json").unlink(), "cannot be read"),
    "no-file": (lambda at, _: (at / "adapter_model.safetensors").unlink(), "missing"),
    "truncated": (truncated, "truncated"),
    "half": (without_a_matrix, "one of its two matrices"),
    "base": (of_another_base, "adapter of another base model"),
}


def test_an_adapter_that_does_not_fit_is_refused_with_a_sentence(
    family: Any, vllm_backend: Any, rig: Any, tmp_path: Path
) -> None:
    base, _ = family("llama"), family("qwen3")
    made = rig(vllm_backend(adapters=LIMITS), base)
    for name, (spoil, said) in FAULTS.items():
        directory = make_adapter(base, tmp_path / name, seed=1)
        spoil(directory, base)
        with pytest.raises(ModelError, match=said) as refused:
            made.backend.describe_adapter("llama", directory)
        assert "\n" not in str(refused.value)
    good = loaded(made, make_adapter(base, tmp_path / "good", seed=1))
    part = StepInput([5, 6], 0, np.array([1], dtype=np.int32), None, adapter=good)
    assert made.backend.logits("llama", [part]).isfinite().all()


def test_adapters_beyond_the_memory_for_them_are_refused_and_leave_the_model_as_it_was(
    family: Any, vllm_backend: Any, rig: Any, tmp_path: Path
) -> None:
    adapter = make_adapter(family("llama"), tmp_path / "a", seed=1)
    without = rig(vllm_backend(), family("llama"))
    small = rig(vllm_backend(adapters=AdapterLimits(16, 2, 1 << 10)), family("llama"))
    with pytest.raises(ModelError, match="its GpuPool needs"):
        without.backend.describe_adapter("llama", adapter)
    with pytest.raises(ModelError, match="1024 are left for adapters"):
        small.backend.describe_adapter("llama", adapter)
    assert small.logits([5, 6, 7], 0, [1]).equal(without.logits([5, 6, 7], 0, [1]))
    one = loaded(rig(vllm_backend(adapters=LIMITS), family("llama")), adapter)
    part = StepInput([5], 0, np.array([1], dtype=np.int32), None, adapter=one)
    with pytest.raises(BackendError, match="describe it first"):
        small.backend.logits("llama", [part])
