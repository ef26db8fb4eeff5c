"""A shell is admitted by computing the same in every way it is used; each kind of fault that would not is found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from backend_vllm.families import FAMILIES

from aegaeon_sidecar.domain.errors import ModelError

Described = Callable[[str], tuple[Any, Callable[[], None]]]


@pytest.fixture
def described(family: Any, vllm_backend: Any) -> Described:
    """described("llama") -> its shell, and its proof."""

    def describe(name: str) -> tuple[Any, Callable[[], None]]:
        layout = vllm_backend().describe(family(name), 0)
        return layout.built.shell, layout.proof.run

    return describe


def test_a_shell_that_is_exact_is_admitted_and_left_as_it_was(described: Described) -> None:
    shell, prove = described("llama")
    methods = [getattr(module, "quant_method", None) for module in shell.model.modules()]
    modules = [name for name, _ in shell.model.named_modules()]
    layers, pages = shell.layers, dict(shell.pages)
    prove()
    assert methods == [getattr(module, "quant_method", None) for module in shell.model.modules()]
    assert modules == [name for name, _ in shell.model.named_modules()], "layers are all there"
    assert shell.layers is layers
    assert shell.pages == pages
    assert all(parameter.is_meta for parameter in shell.model.parameters()), "no memory is kept"


@pytest.mark.parametrize("name", ["llama", "llama4", "gemma3n"])
def test_metadata_that_copies_lengths_and_is_kept_between_steps_is_found(
    described: Described, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Llama 4's chunked attention did, which then read blocks that were others'."""
    shell, prove = described(name)
    prove()
    for _, builder in shell.groups:
        build = builder.build
        monkeypatch.setattr(builder, "build", lambda prefix, common, build=build: _copied(build(prefix, common)))
    monkeypatch.setattr(type(shell), "keeps_metadata", True)
    with pytest.raises(ModelError, match="would depend on others' requests"):
        prove()


def _copied(metadata: Any) -> Any:
    metadata.seq_lens = metadata.seq_lens.clone()
    metadata.block_table = metadata.block_table.clone()
    return metadata


def test_a_layer_that_reads_an_unwritten_page_is_found(described: Described) -> None:
    """As Gemma 3n's shared layers did, each with a page of its own."""
    shell, prove = described("gemma3n")
    prove()
    shell.pages = {name: number for number, name in enumerate(shell.layers)}
    with pytest.raises(ModelError, match="would depend on others' requests"):
        prove()


def test_a_read_of_an_unwritten_page_that_hides_what_is_no_number_is_found(
    described: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What shows it are the blocks that other numbers were left in, full ones: those that are begun are made zeros."""
    from aegaeon_sidecar.backends.vllm import surface

    shell, prove = described("gemma3n")
    shell.pages = {name: number for number, name in enumerate(shell.layers)}
    for layer in (layer for layer in shell.layers.values() if surface.shares_kv_of(layer) is not None):
        monkeypatch.setattr(layer, "forward", partial(_hiding, layer, layer.forward))
    with pytest.raises(ModelError, match="would depend on others' requests"):
        prove()


def _hiding(layer: Any, compute: Callable[..., Any], *parts: Any, **named: Any) -> Any:
    layer.kv_cache.nan_to_num_(0.0, 0.0, 0.0)
    return compute(*parts, **named)


def test_keys_that_are_kept_beside_the_blocks_are_found(described: Described, monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer of the module's own: it holds what the last step left there, of any sequence."""
    shell, prove = described("llama")
    layer = next(iter(shell.layers.values()))
    compute = layer.forward
    kept: dict[str, Any] = {}

    def forward(query: Any, key: Any, value: Any, *more: Any, **named: Any) -> Any:
        before = kept.get("value")
        kept["value"] = value.clone()
        mixed = value if before is None or len(before) != len(value) else (value + before) / 2
        return compute(query, key, mixed, *more, **named)

    monkeypatch.setattr(layer, "forward", forward)
    with pytest.raises(ModelError, match="would depend on others' requests"):
        prove()


def test_blocks_that_moved_and_are_read_where_they_were_are_found(
    described: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    _shell, prove = described("llama")
    monkeypatch.setattr("aegaeon_sidecar.backends.vllm.batch.Batch._replace", lambda batch, row, part: None)
    with pytest.raises(ModelError, match="would depend on others' requests"):
        prove()


def test_a_model_whose_outputs_show_nothing_of_its_cache_is_not_proved(
    described: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, prove = described("llama")
    for layer in shell.layers.values():
        monkeypatch.setattr(layer, "forward", lambda query, *others, **named: query * 0)
    with pytest.raises(ModelError, match="nothing can be proved of it"):
        prove()


@pytest.mark.parametrize("name", ["mixtral", "gptoss"])
def test_a_baked_shell_is_proved_with_its_own_experts(described: Described, name: str) -> None:
    shell, prove = described(name)
    prove()
    assert not any(parameter.is_meta for parameter in shell.model.parameters())


HALF = ("llama", "qwen3", "gemma2", "gemma3", "mixtral", "gptoss", "llama4", "gemma3n", "gemma4")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float32") for name in FAMILIES),
        *((name, "bfloat16") for name in HALF),
    ],
)
def test_every_family_that_is_exact_is_admitted(name: str, dtype: str, family: Any, vllm_backend: Any) -> None:
    vllm_backend(dtype).describe(family(name, dtype), 0).proof.run()
