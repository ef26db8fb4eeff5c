"""Embeddings and scores of the torch backend are those of transformers, whatever the chunks and the company."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from aegaeon_proto.engine.sampling import PoolingParams
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.errors import BackendError, ConfigError
from aegaeon_sidecar.sampling import NotFinite, Pooled, SamplerState

Floats = NDArray[np.float32]
LAST = PoolingParams()


def chunked(rig: Any, prompt: Sequence[int], sizes: Sequence[int], pooling: PoolingParams = LAST) -> Floats:
    """The result of the last of these chunks; the others have none."""
    table, done = rig.table(len(prompt)), 0
    for size in sizes:
        last = done + size == len(prompt)
        part = StepInput(prompt[done : done + size], done, table, None, pooling=pooling if last else None)
        [result] = rig.backend.step("model", [part])
        assert (result is None) != last
        done += size
    assert isinstance(result, Pooled)
    return result.values


def hidden(directory: Path, prompt: Sequence[int]) -> Floats:
    """transformers' last hidden state of the last token."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return np.asarray(model(torch.tensor([list(prompt)])).last_hidden_state[0, -1].numpy())


def test_an_embedding_is_the_last_hidden_state(rig: Any, embedder: Path, prompt: list[int]) -> None:
    expected = hidden(embedder, prompt)
    engine = rig(embedder, kv_blocks=128)
    once = chunked(engine, prompt, [60])
    assert np.allclose(once, expected, rtol=1e-4, atol=1e-5)
    assert once.shape == (64,)
    for sizes in ([30, 30], [1, 58, 1]):
        assert np.allclose(chunked(engine, prompt, sizes), expected, rtol=1e-4, atol=1e-5)


def test_an_embedding_is_the_same_alone_and_in_company(rig: Any, embedder: Path, prompt: list[int]) -> None:
    engine = rig(embedder, kv_blocks=128)
    alone = chunked(engine, prompt, [60])
    prompts = [prompt[:7], prompt, prompt[5:6], prompt[3:40]]
    together = engine.backend.step(
        "model", [StepInput(p, 0, engine.table(len(p)), None, pooling=LAST) for p in prompts]
    )
    assert np.array_equal(together[1].values, alone)
    for one, part in zip(prompts, together, strict=True):
        assert np.allclose(part.values, hidden(embedder, one), rtol=1e-4, atol=1e-5)


def test_a_classifier_gives_its_logit(rig: Any, reranker: Path, prompt: list[int]) -> None:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(reranker, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0].numpy()
    got = chunked(rig(reranker), prompt, [50, 10])
    assert got.shape == (1,)
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_logits_of_chosen_tokens_are_those_of_the_decoder(
    rig: Any, reference: Callable[[Path, Sequence[int]], torch.Tensor], tiny_models: dict[str, Path], prompt: list[int]
) -> None:
    engine = rig(tiny_models["qwen3"], task="score")
    got = chunked(engine, prompt, [60], PoolingParams((17, 5)))
    expected = reference(tiny_models["qwen3"], prompt)[-1, [17, 5]].numpy()
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_files_of_a_decoder_without_head_are_served(
    rig: Any, headless: Path, embedder: Path, prompt: list[int]
) -> None:
    """sentence-transformers saves the inner model, whose tensors' names begin inside of it."""
    assert np.array_equal(chunked(rig(headless), prompt, [60]), chunked(rig(embedder), prompt, [60]))
    with pytest.raises(ConfigError, match="architectures"):
        TorchBackend().describe(headless, 0, "generate")


def test_an_embedder_takes_no_memory_for_a_head(tiny_models: dict[str, Path]) -> None:
    whole, embeds = (TorchBackend().describe(tiny_models["qwen2"], 0, task) for task in ("", "embed"))
    assert (whole.pools, embeds.pools) == (False, True)
    names = {place.name for place in whole.tensors} - {place.name for place in embeds.tensors}
    assert names == {"lm_head.weight"}


def test_paged_decodes_do_not_take_a_prompt_of_one_token(rig: Any, embedder: Path) -> None:
    plain, paged = (chunked(rig(embedder, paged=paged), [17], [1]) for paged in (False, True))
    assert np.allclose(plain, paged, rtol=1e-4, atol=1e-5)


def test_two_ranks_give_the_same_embedding(rig: Any, embedder: Path, prompt: list[int]) -> None:
    assert np.allclose(chunked(rig(embedder, ranks=2), prompt, [60]), hidden(embedder, prompt), rtol=1e-4, atol=1e-5)


def test_what_is_not_finite_is_its_own_trouble_alone(rig: Any, nan_model: Path, prompt: list[int]) -> None:
    engine = rig(nan_model, kv_blocks=128, task="embed")
    given = [[300, 17], prompt[:9]]
    bad, good = engine.backend.step("model", [StepInput(p, 0, engine.table(len(p)), None, pooling=LAST) for p in given])
    assert isinstance(bad, NotFinite)
    assert isinstance(good, Pooled)


def test_a_step_either_samples_or_pools(rig: Any, embedder: Path, prompt: list[int]) -> None:
    engine = rig(embedder)
    parts = [StepInput(prompt, 0, engine.table(60), None, pooling=LAST)]
    parts.append(StepInput(prompt[:3], 0, engine.table(3), SamplerState()))
    with pytest.raises(BackendError, match="either samples or pools"):
        engine.backend.step("model", parts)
