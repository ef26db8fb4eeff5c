"""Embeddings and scores of vLLM's decoders: what the torch backend gives, which is held against transformers itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from aegaeon_proto.engine.sampling import PoolingParams
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.errors import ModelError
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.sampling import Pooled
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing

TOKENS = [5 + 3 * j % 240 for j in range(90)]
BLOCKS = [17, 3, 11]


def pooled(model: Any, pooling: PoolingParams, cuts: tuple[int, ...] = (90,)) -> Any:
    begin = 0
    for end in cuts:
        last = pooling if end == len(TOKENS) else None
        part = StepInput(TOKENS[begin:end], begin, np.array(BLOCKS, dtype=np.int32), None, pooling=last)
        [result] = model.backend.step(model.name, [part])
        begin = end
    assert isinstance(result, Pooled)
    return result.values


def of_torch(directory: Path, task: str, pooling: PoolingParams) -> Any:
    backend = TorchBackend()
    layout = backend.describe(directory, 0, task)
    weights, kv = np.empty(layout.image_bytes, np.uint8), np.zeros(8 * layout.kv_block_bytes, np.uint8)
    backend.register("m", directory, layout, weights)
    fill(look(directory, layout), [weights], StageRing())
    backend.bind_kv(layout.kv_shape, kv)
    [result] = backend.step("m", [StepInput(TOKENS, 0, np.arange(8, dtype=np.int32), None, pooling=pooling)])
    assert isinstance(result, Pooled)
    return result.values


@pytest.fixture
def classifier(family: Callable[..., Path], tmp_path: Path) -> Path:
    directory = tmp_path / "classifier"
    shutil.copytree(family("qwen3"), directory)
    config = json.loads((directory / "config.json").read_text())
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    config |= {"architectures": ["Qwen3ForSequenceClassification"], **labels}
    (directory / "config.json").write_text(json.dumps(config))
    tensors = load_file(directory / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    tensors["score.weight"] = torch.randn(1, 128, generator=torch.Generator().manual_seed(3)) * 0.2
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
def test_a_decoder_embeds_before_and_after_a_switch(name: str, family: Any, vllm_backend: Any, rig: Any) -> None:
    model = rig(vllm_backend(), family(name), task="embed")
    expected = of_torch(family(name), "embed", PoolingParams())
    first = pooled(model, PoolingParams(), (30, 70, 90))
    assert np.allclose(first, expected, rtol=1e-4, atol=1e-4)
    model.scramble()
    assert not np.array_equal(pooled(model, PoolingParams(), (30, 70, 90)), first), "a copy of the weights is used"
    model.load()
    assert np.array_equal(pooled(model, PoolingParams(), (30, 70, 90)), first)


def test_a_classifier_gives_its_logit(classifier: Path, vllm_backend: Any, rig: Any) -> None:
    got = pooled(rig(vllm_backend(), classifier), PoolingParams())
    assert got.shape == (1,)
    assert np.allclose(got, of_torch(classifier, "", PoolingParams()), rtol=1e-4, atol=1e-4)


def test_a_decoder_is_asked_for_tokens(family: Any, vllm_backend: Any, rig: Any) -> None:
    asked = PoolingParams((17, 5))
    got = pooled(rig(vllm_backend(), family("qwen3"), task="score"), asked)
    assert np.allclose(got, of_torch(family("qwen3"), "score", asked), rtol=1e-4, atol=1e-4)


def test_what_attends_in_both_directions_is_refused(family: Any, vllm_backend: Any, tmp_path: Path) -> None:
    directory = tmp_path / "both"
    shutil.copytree(family("qwen2"), directory)
    config = json.loads((directory / "config.json").read_text()) | {"is_causal": False}
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="both directions"):
        vllm_backend().describe(directory, 0, "embed")
