"""Models of many families compute what transformers computes, wherever their weights and blocks lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from backend_vllm.families import FAMILIES, REFUSED
from backend_vllm.reference import logits as reference_logits
from backend_vllm.rows import read_rows, written

from aegaeon_sidecar.domain.errors import ModelError

TOKENS = [5 + 3 * j % 240 for j in range(90)]
CUTS = ((0, 30), (30, 70), (70, 71), (71, 72), (72, 90))
BLOCKS = [17, 3, 11]
PAGE = Path(__file__).parents[2] / "docs/guides/vllm.md"


@pytest.fixture(scope="module")
def expected(family: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return reference_logits(map(family, FAMILIES), TOKENS, tmp_path_factory.mktemp("reference") / "logits.npz")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_gives_the_logits_of_transformers_before_and_after_a_switch(
    name: str, family: Any, vllm_backend: Any, rig: Any, expected: Mapping[str, Any]
) -> None:
    model = rig(vllm_backend(), family(name))
    first = [model.logits(TOKENS[begin:end], begin, BLOCKS) for begin, end in CUTS]
    for (_, end), row in zip(CUTS, first, strict=True):
        wanted = expected[name][end - 1]
        assert abs(row.numpy() - wanted).max() < 2e-5 * abs(wanted).max()
    model.scramble()
    assert not (model.logits(TOKENS[72:], 72, BLOCKS) == first[-1]).all(), "a copy of the weights is used"
    model.load()
    again = [model.logits(TOKENS[begin:end], begin, BLOCKS[::-1]) for begin, end in CUTS]
    assert all((one == other).all() for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_placed_by_a_plan_or_baked_as_the_documentation_says(
    name: str, family: Any, vllm_backend: Any
) -> None:
    layout = vllm_backend().describe(family(name), 0)
    assert (layout.bake is not None) == FAMILIES[name][2]
    assert layout.streams == (layout.bake is None)


def test_the_documentation_lists_every_family_and_architecture_as_it_is() -> None:
    text = PAGE.read_text("utf-8")
    assert written(text, read_rows()) == text, "run make generate"


@pytest.mark.parametrize("name", [name for name, (_, _, bakes) in FAMILIES.items() if not bakes])
def test_an_image_by_plan_has_the_bytes_of_a_real_load(name: str, family: Any, vllm_backend: Any, rig: Any) -> None:
    from aegaeon_sidecar.backends.vllm import surface
    from aegaeon_sidecar.backends.vllm.refusals import read_architectures
    from aegaeon_sidecar.backends.vllm.shell import baked, image_of
    from aegaeon_sidecar.models.files import read_tensors

    directory = family(name)
    model = rig(vllm_backend(), directory)
    with surface.EXCLUSIVE:
        config = surface.new_config(directory, read_architectures(directory), "float32", 32, 0)
        shell, _ = baked(config, read_tensors(directory))
    assert (image_of(shell).numpy() == model.image).all()


def test_a_thread_that_computes_for_the_first_time_has_as_many_threads_as_torch(
    family: Any, vllm_backend: Any, rig: Any
) -> None:
    import torch

    model = rig(vllm_backend(), family("llama"))
    tokens = TOKENS[:32]  # a whole block: nothing that asks torch for the number comes before attention's metadata
    expected, before = model.logits(tokens, 0, BLOCKS), torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        with ThreadPoolExecutor(1) as fresh:
            computed = fresh.submit(model.logits, tokens, 0, BLOCKS).result()
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(computed, expected)


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_whose_state_is_not_paged_kv_is_refused_with_the_reason(
    name: str, family: Any, vllm_backend: Any
) -> None:
    with pytest.raises(ModelError, match=REFUSED[name][2]):
        vllm_backend().describe(family(name), 0)
