"""Tiny random models of many families, and their reference: what transformers computes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from aegaeon_native import cpu_level

VOCABULARY = 512
_CPU = Path("/proc/cpuinfo")
AVX512 = cpu_level() == "avx512"
NO_INT4 = "needs a CPU with AVX-512: vLLM has no other kernel for weights of 4 bits"
needs_avx512 = pytest.mark.skipif(not AVX512, reason=NO_INT4)
needs_amx = pytest.mark.skipif(
    not AVX512 or not _CPU.is_file() or "amx_tile" not in _CPU.read_text(),
    reason="needs a CPU with AMX: vLLM has no other kernel for MXFP4",
)
BASE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "initializer_range": 0.2,
}
HEAD = {"head_dim": 32}
PLAIN = {key: BASE[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")}
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2}

# By family: transformers' configuration class and what it is given; whether its image is baked.
FAMILIES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "llama": ("LlamaConfig", BASE | HEAD | {"num_hidden_layers": 3, "tie_word_embeddings": False}, False),
    "qwen2": ("Qwen2Config", BASE | {"tie_word_embeddings": True}, False),
    "qwen3": ("Qwen3Config", BASE | HEAD | {"tie_word_embeddings": True, "num_attention_heads": 6}, False),
    "mistral": ("MistralConfig", BASE | HEAD | {"sliding_window": None}, False),
    "phi3": ("Phi3Config", BASE, False),
    "gemma": ("GemmaConfig", BASE | HEAD, False),
    "gemma2": ("Gemma2Config", BASE | HEAD | {"sliding_window": 64, "query_pre_attn_scalar": 32}, False),
    "gemma3": ("Gemma3TextConfig", BASE | HEAD | {"sliding_window": 64, "query_pre_attn_scalar": 32}, False),
    "granite": ("GraniteConfig", BASE, False),
    "olmo2": ("Olmo2Config", BASE, False),
    "cohere": ("CohereConfig", BASE, False),
    "starcoder2": ("Starcoder2Config", BASE, False),
    "stablelm": ("StableLmConfig", BASE, False),
    "glm4": ("Glm4Config", BASE | HEAD, False),
    "smollm3": ("SmolLM3Config", BASE, False),
    "gpt2": ("GPT2Config", PLAIN | {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 512}, True),
    "opt": (
        "OPTConfig",
        {**PLAIN, "hidden_size": 128, "ffn_dim": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"max_position_embeddings": 512, "word_embed_proj_dim": 128},
        False,
    ),
    "gptneox": (
        "GPTNeoXConfig",
        {**PLAIN, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"max_position_embeddings": 512},
        False,
    ),
    "falcon": (
        "FalconConfig",
        {**PLAIN, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
        True,
    ),
    "mixtral": ("MixtralConfig", BASE | {"num_local_experts": 4}, True),
    "qwen3moe": ("Qwen3MoeConfig", BASE | HEAD | EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": []}, True),
    "gptoss": (
        "GptOssConfig",
        BASE | HEAD | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64},
        True,
    ),
}
# Families whose layers share KV: sliding and full ones end where sharing begins, as in the models that are published.
SHARING = {
    **BASE,
    **HEAD,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "sliding_window": 64,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 32,
}
FAMILIES |= {
    "llama4": (
        "Llama4TextConfig",
        BASE
        | HEAD
        | {"intermediate_size_mlp": 192, "num_local_experts": 4, "interleave_moe_layer_step": 1}
        | {"attention_chunk_size": 64},
        True,
    ),
    "gemma3n": (
        "Gemma3nTextConfig",
        SHARING
        | {"intermediate_size": [192] * 4, "laurel_rank": 16, "altup_num_inputs": 2}
        | {"activation_sparsity_pattern": None},
        False,
    ),
    "gemma4": ("Gemma4TextConfig", SHARING | {"global_head_dim": 32}, True),
}
MLA = {"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
# By family that is refused: transformers' configuration class, what it is given, and what the refusal says.
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "mamba2": (
        "Mamba2Config",
        {**PLAIN, "hidden_size": 128, "num_hidden_layers": 2, "head_dim": 32, "num_heads": 8, "state_size": 16}
        | {"n_groups": 1},
        "keeps a state per sequence",
    ),
    "deepseek2": (
        "DeepseekV2Config",
        {**BASE, "num_key_value_heads": 4, **MLA, "moe_intermediate_size": 64, "n_routed_experts": 4}
        | {"n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
        "multi-head latent attention",
    ),
    "qwen3next": (
        "Qwen3NextConfig",
        {**BASE, **HEAD, **EXPERTS, "shared_expert_intermediate_size": 64, "linear_num_value_heads": 4}
        | {"linear_num_key_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32},
        "keeps a state per sequence",
    ),
}


def save(kind: str, settings: dict[str, Any], directory: Path, dtype: str, seed: int = 1) -> Path:
    """A random model, saved as transformers saves it. Norms and biases are random as well."""
    import torch
    import transformers

    config = getattr(transformers, kind)(**settings)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                torch.nn.init.normal_(parameter, mean=0.0 if "Gemma" in kind else 1.0, std=0.2)
            elif name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.2)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    return directory


GROUP = 32


def quantise(method: str, source: Path, directory: Path) -> Path:
    """`source`, a llama in bfloat16, with its projections as random int4 in the format of GPTQ or AWQ."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, directory, dirs_exist_ok=True)
    tensors = load_file(source / "model.safetensors")
    new = {name: tensor for name, tensor in tensors.items() if not name.endswith("_proj.weight")}
    generator = torch.Generator().manual_seed(3)

    def ints(*shape: int) -> torch.Tensor:
        drawn = torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int64, generator=generator)
        return drawn.to(torch.int32)

    for name, tensor in tensors.items():
        if not name.endswith("_proj.weight"):
            continue
        base, (outer, inner) = name.removesuffix(".weight"), tensor.shape
        scales = torch.rand(inner // GROUP, outer, generator=generator) * 0.06 + 0.01
        new[f"{base}.scales"] = scales.to(torch.bfloat16 if method == "gptq" else torch.float16)
        if method == "gptq":
            new[f"{base}.qweight"] = ints(inner // 8, outer)
            new[f"{base}.qzeros"] = torch.full((inner // GROUP, outer // 8), 0x77777777, dtype=torch.int32)
            new[f"{base}.g_idx"] = (torch.arange(inner) // GROUP).to(torch.int32)
        else:
            new[f"{base}.qweight"] = ints(inner, outer // 8)
            new[f"{base}.qzeros"] = ints(inner // GROUP, outer // 8)
    save_file(new, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = QUANTISED[method]
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def quantise_experts(source: Path, directory: Path) -> Path:
    """`source`, a gpt-oss in bfloat16, with its experts as random MXFP4: 32 items in 16 bytes, and their exponent."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, directory, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(3)
    new = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            new[name] = tensor
            continue
        experts, inner, outer = tensor.shape
        blocks = (experts, outer, inner // GROUP)
        new[f"{name}_blocks"] = torch.randint(256, (*blocks, 16), dtype=torch.uint8, generator=generator)
        new[f"{name}_scales"] = torch.randint(120, 125, blocks, dtype=torch.uint8, generator=generator)
    save_file(new, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = QUANTISED["mxfp4"]
    (directory / "config.json").write_text(json.dumps(config))
    return directory


KEPT = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
QUANTISED: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "lm_head": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": KEPT},
}
