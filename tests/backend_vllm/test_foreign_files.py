"""A model that vLLM cannot serve fails alone, with one sentence, and the backend goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_vllm.families import AVX512, quantise
from safetensors.torch import load_file, save_file

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.vllm import open_backend
from aegaeon_sidecar.domain.errors import BackendError, ModelError


def changed(directory: Path, target: Path, **fields: Any) -> Path:
    shutil.copytree(directory, target)
    config = json.loads((target / "config.json").read_text())
    kept = {key: value for key, value in (config | fields).items() if value is not None}
    (target / "config.json").write_text(json.dumps(kept))
    return target


OWN_CODE = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (OWN_CODE, "code of the model's own"),
        ({"architectures": ["MineForCausalLM"]}, "MineForCausalLM"),
        ({"architectures": None}, "architectures is missing"),
        ({"architectures": "LlamaForCausalLM"}, "a list of names"),
        ({"num_key_value_heads": 1}, "do not belong together"),
        ({"hidden_size": 96}, "are not what config.json says"),
        ({"num_hidden_layers": 5}, "is not in the files"),
        ({"head_dim": 16, "num_attention_heads": 8, "num_key_value_heads": 4}, "heads of 16 features"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}},
            "Cannot find any of .* quantization config.$",
        ),
        ({"quantization_config": {"quant_method": "unheard"}}, "does not serve it"),
    ],
)
def test_files_that_do_not_fit_are_refused_and_the_next_model_is_served(
    fields: dict[str, Any], reason: str, family: Any, vllm_backend: Any, rig: Any, tmp_path: Path
) -> None:
    backend = vllm_backend()
    with pytest.raises(ModelError, match=reason) as refused:
        backend.describe(changed(family("llama"), tmp_path / "changed", **fields), 0)
    assert "\n" not in str(refused.value)
    assert rig(backend, family("qwen3")).logits([5, 6, 7], 0, [1]).isfinite().all()


def test_weights_of_another_quantisation_are_refused_with_what_is_wrong(
    family: Any, vllm_backend: Any, tmp_path: Path
) -> None:
    backend, gptq = vllm_backend("bfloat16"), family("gptq")
    settings = json.loads((gptq / "config.json").read_text())["quantization_config"]
    other = changed(gptq, tmp_path / "group", quantization_config=settings | {"group_size": 64})
    with pytest.raises(ModelError, match=r"not what config.json says; .*AssertionError: raised in "):
        backend.describe(other, 0)
    damaged = changed(gptq, tmp_path / "damaged")
    tensors = load_file(damaged / "model.safetensors")
    scales = {name: tensor * float("nan") for name, tensor in tensors.items() if name.endswith("scales")}
    save_file(tensors | scales, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="its logits are no numbers"):
        backend.describe(damaged, 0)


@pytest.mark.skipif(AVX512, reason="this CPU has the kernel; AEGAEON_CPU_LEVEL=avx2 shows what others say")
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_weights_of_four_bits_are_refused_where_the_library_for_the_cpu_has_no_kernel_for_them(
    method: str, family: Any, vllm_backend: Any, tmp_path: Path
) -> None:
    model = quantise(method, family("llama", "bfloat16"), tmp_path / method)
    with pytest.raises(ModelError, match=r"no kernel .* for this processor .*need a CPU with AVX-512: bring the model"):
        vllm_backend("bfloat16").describe(model, 0)


EIGHT_BITS = {"num_bits": 8, "type": "float", "symmetric": True}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": EIGHT_BITS | {"strategy": "tensor", "dynamic": False},
            "input_activations": EIGHT_BITS | {"strategy": "token", "dynamic": True},
        }
    },
}


NO_KERNEL = r"has no kernel static_scaled_fp8_quant on this device \(cpu\)$"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, NO_KERNEL),
        (COMPRESSED, "weights of 8-bit floats, which are not served on CPUs; bring"),
    ],
)
def test_eight_bit_floats_are_refused(
    settings: dict[str, Any], reason: str, family: Any, vllm_backend: Any, rig: Any, tmp_path: Path
) -> None:
    backend = vllm_backend("bfloat16")
    directory = changed(family("llama", "bfloat16"), tmp_path / "eight", quantization_config=settings)
    tensors = load_file(directory / "model.safetensors")
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        scale = tensors[name].float().abs().max() / 448
        tensors[name] = (tensors[name].float() / scale).to(torch.float8_e4m3fn)
        tensors[name + "_scale"] = scale.reshape(1)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=reason):
        backend.describe(directory, 0)
    assert rig(backend, family("qwen3", "bfloat16")).logits([5, 6, 7], 0, [1]).isfinite().all()


def test_a_length_beyond_the_model_is_refused(family: Any, vllm_backend: Any) -> None:
    with pytest.raises(ModelError, match="does not serve it"):
        vllm_backend().describe(family("llama"), 1 << 20)


def test_a_step_that_vllm_cannot_compute_is_an_error_of_the_backend(family: Any, vllm_backend: Any, rig: Any) -> None:
    model = rig(vllm_backend(), family("llama"))
    import numpy as np

    short = StepInput([5] * 40, 0, np.array([1], dtype=np.int32), None)
    with pytest.raises(BackendError, match="a block table has 1 blocks, 2 are needed"):
        model.backend.logits("llama", [short])
    with pytest.raises(BackendError, match="not registered"):
        model.backend.logits("mistral", [short])


@pytest.mark.parametrize(
    ("device", "ranks", "reason"), [("cpu", 2, "on one device"), ("cuda:0", 1, "computes on CPUs")]
)
def test_devices_that_the_backend_does_not_have_are_refused(device: str, ranks: int, reason: str) -> None:
    with pytest.raises(BackendError, match=reason):
        open_backend(device=device, ranks=ranks, dtype="float32")
