"""Models that the vLLM backend does not serve are recognised by their folders alone, each with one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aegaeon_sidecar.backends.vllm.folders import check_config, check_folder
from aegaeon_sidecar.domain.errors import UnsupportedError


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (("model-Q4_K_M.gguf",), r"are GGUF \(model-Q4_K_M.gguf\), .* not served; bring the model's safetensors"),
        (("params.json", "consolidated.safetensors"), r"Mistral's own format .* not served; bring the files"),
    ],
)
def test_weights_in_another_format_are_named(tmp_path: Path, files: tuple[str, ...], sentence: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(UnsupportedError, match=sentence):
        check_folder(tmp_path)
    (tmp_path / "model.safetensors").touch()
    check_folder(tmp_path)


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("Gemma3ForConditionalGeneration", {"vision_config": {"hidden_size": 8}}, "takes images; only text"),
    ("Qwen3_5ForConditionalGeneration", {"vision_config": {"depth": 2}}, "takes images"),
    ("UltravoxModel", {"audio_config": {"hidden_size": 8}}, "takes sound"),
    ("Qwen3NextForCausalLM", {"layer_types": ["linear_attention", "full_attention"]}, "keeps a state per sequence"),
    ("Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}, "keeps a state per sequence"),
    ("XLMRobertaModel", {}, "attends in both directions"),
    ("ModernBertModel", {}, "attends in both directions"),
    ("NomicBertModel", {}, "attends in both directions"),
    ("Gemma3TextModel", {"use_bidirectional_attention": True}, "attends in both directions"),
    ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, "has an encoder"),
    ("LlamaForCausalLM", {"quantization_config": {"quant_method": "bitsandbytes"}}, "by bitsandbytes: .*; bring"),
    ("LlamaForCausalLM", {"quantization_config": {"quant_method": "torchao"}}, "by torchao: .*; bring the model in 16"),
    ("LlamaForCausalLM", {"quantization_config": {"quant_method": "modelopt"}}, r"by modelopt: .*\(NVFP4, FP8\)"),
]


@pytest.mark.parametrize(("name", "fields", "sentence"), CONFIGS)
def test_what_config_json_shows_is_said_before_anything_is_imported(
    tmp_path: Path, name: str, fields: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]} | fields))
    with pytest.raises(UnsupportedError, match=f"^{name} .*{sentence}") as refused:
        check_config(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"architectures": ["LlamaForCausalLM"]},
        {"architectures": ["Gemma3ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"]},
        {"architectures": ["Phi3ForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}},
        {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "gptq", "bits": 4}},
        {"architectures": None},
    ],
)
def test_what_may_be_served_passes(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    check_config(tmp_path)
