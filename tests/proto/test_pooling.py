"""What a model is for, read from the files that sentence-transformers and transformers write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aegaeon_proto.pooling import CONFIG, MODULES, POOLING, PoolingError, Purpose, Task, purpose_of, read_purpose

ST = "sentence_transformers.models."
DECODER = {CONFIG: {"architectures": ["Qwen3ForCausalLM"]}}
CLASSIFIER = {CONFIG: {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}}


def modules(*names: str) -> dict[str, object]:
    return {MODULES: [{"idx": at, "path": "", "type": ST + name} for at, name in enumerate(names)]}


def embedder(mode: str = "pooling_mode_lasttoken", **config: Any) -> dict[str, object]:
    """The files of a Qwen3-Embedding."""
    pooling = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "include_prompt": True, mode: True}
    return {
        CONFIG: {"architectures": ["Qwen3ForCausalLM"], **config},
        **modules("Transformer", "Pooling", "Normalize"),
        POOLING: pooling,
    }


def test_a_decoder_generates_unless_its_files_or_its_manifest_say_more() -> None:
    assert purpose_of(DECODER) == Purpose(Task.GENERATE)
    assert purpose_of(embedder()) == Purpose(Task.EMBED)
    assert purpose_of({**DECODER, **modules("Transformer", "Pooling")}) == Purpose(Task.EMBED, normalize=False)
    assert purpose_of(CLASSIFIER) == Purpose(Task.SCORE, classifies=True)
    assert purpose_of(DECODER, "embed") == Purpose(Task.EMBED)
    assert purpose_of(DECODER, "score") == Purpose(Task.SCORE)
    assert purpose_of(embedder(), "generate") == Purpose(Task.GENERATE)


def test_dimensions_may_be_cut_where_the_config_says_so() -> None:
    assert purpose_of(embedder(is_matryoshka=True)).matryoshka is True
    assert purpose_of(embedder(matryoshka_dimensions=[64, 32])).matryoshka == (32, 64)
    assert purpose_of(embedder(matryoshka_dimensions=["64"])).matryoshka is False


@pytest.mark.parametrize(
    ("documents", "task", "said"),
    [
        (embedder("pooling_mode_mean_tokens"), "", "pools by mean"),
        ({**embedder(), POOLING: {"pooling_mode": "cls"}}, "", "pools by cls"),
        ({**DECODER, **modules("Transformer", "Pooling", "Dense")}, "", "Dense is not supported"),
        ({CONFIG: {"architectures": ["Qwen3ForSequenceClassification"]}}, "", "has 2 labels"),
        (CLASSIFIER, "embed", "classifier"),
        (CLASSIFIER, "generate", "classifier"),
        (DECODER, "classify", "is not one of generate, embed, score"),
    ],
)
def test_what_is_not_served_is_refused_by_a_sentence(documents: dict[str, object], task: str, said: str) -> None:
    with pytest.raises(PoolingError, match=said):
        purpose_of(documents, task)


def test_files_are_read_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    for name, document in embedder(is_matryoshka=True).items():
        (tmp_path / name).write_text(json.dumps(document))
    assert read_purpose(tmp_path) == Purpose(Task.EMBED, matryoshka=True)
    (tmp_path / MODULES).write_text("[")
    with pytest.raises(PoolingError, match=r"modules\.json: not JSON"):
        read_purpose(tmp_path)


@pytest.mark.parametrize(
    "document", [None, 3, "x", [], [3], [{"type": 7}], {"architectures": 5}, {"architectures": [[]]}]
)
def test_documents_of_any_shape_are_no_fault_of_the_reader(document: object) -> None:
    for name in (CONFIG, MODULES, POOLING):
        try:
            purpose_of({name: document})
        except PoolingError:
            continue
