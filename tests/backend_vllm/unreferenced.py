"""Architectures whose configuration vLLM brings and of which transformers has no model: tiny random ones, by hand.

There is nothing to compare their logits with; what is tested is that they are admitted by proof.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HIDDEN, INNER, VOCABULARY = 128, 192, 512
Shapes = dict[str, tuple[int, ...]]
NORMS: Shapes = {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
SETTINGS: dict[str, Any] = {"hidden_size": HIDDEN, "num_attention_heads": 4, "num_hidden_layers": 2}
STEP: dict[str, Any] = SETTINGS | {
    "intermediate_size": INNER, "vocab_size": VOCABULARY, "max_seq_len": 512, "max_position_embeddings": 512,
    "head_dim": 32, "moe_num_experts": 4, "moe_top_k": 2, "moe_intermediate_size": 64,
}  # fmt: skip


def _layers(prefix: str, shapes: Shapes, numbers: tuple[int, ...] = (0, 1)) -> Shapes:
    return {f"{prefix}.{number}.{name}": shape for number in numbers for name, shape in shapes.items()}


def _mlp(name: str, inner: int) -> Shapes:
    parts = {"gate_proj": (inner, HIDDEN), "up_proj": (inner, HIDDEN), "down_proj": (HIDDEN, inner)}
    return {f"{name}.{part}.weight": shape for part, shape in parts.items()}


def _attention(**rows: int) -> Shapes:
    return {f"self_attn.{name}.weight": (count, HIDDEN) for name, count in rows.items()}


ENDS: Shapes = {
    "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    "lm_head.weight": (VOCABULARY, HIDDEN),
}
# By name: what config.json says, and the tensors.
UNREFERENCED: dict[str, tuple[dict[str, Any], Shapes]] = {
    "chatglm": (
        SETTINGS
        | {"architectures": ["ChatGLMModel"], "model_type": "chatglm", "num_layers": 2, "eos_token_id": 2}
        | {"tie_word_embeddings": False}
        | {"padded_vocab_size": VOCABULARY, "ffn_hidden_size": INNER, "kv_channels": 32, "seq_length": 512}
        | {"add_qkv_bias": True, "multi_query_attention": True, "multi_query_group_num": 2, "original_rope": True},
        {
            "transformer.embedding.word_embeddings.weight": (VOCABULARY, HIDDEN),
            "transformer.encoder.final_layernorm.weight": (HIDDEN,),
            "transformer.output_layer.weight": (VOCABULARY, HIDDEN),
        }
        | _layers(
            "transformer.encoder.layers",
            NORMS
            | {"self_attention.query_key_value.weight": (256, HIDDEN), "self_attention.query_key_value.bias": (256,)}
            | {"self_attention.dense.weight": (HIDDEN, HIDDEN), "mlp.dense_h_to_4h.weight": (2 * INNER, HIDDEN)}
            | {"mlp.dense_4h_to_h.weight": (HIDDEN, INNER)},
        ),
    ),
    "step3text": (
        STEP
        | {"architectures": ["Step3TextForCausalLM"], "model_type": "step3_text", "num_attention_groups": 1}
        | {"max_position_embedding": 512, "share_expert_dim": 64, "share_q_dim": 64, "moe_layers_enum": "1"},
        ENDS
        | _layers("model.layers", NORMS | _attention(q_proj=64, k_proj=32, v_proj=32, o_proj=HIDDEN))
        | _layers("model.layers", {"self_attn.inter_norm.weight": (64,), "self_attn.wq.weight": (HIDDEN, 64)})
        | _layers("model.layers", _mlp("mlp", INNER), (0,))
        | _layers("model.layers", _mlp("share_expert", 64) | {"moe.gate.weight": (4, HIDDEN)}, (1,))
        | {
            "model.layers.1.moe.gate_proj.weight": (4, 64, HIDDEN),
            "model.layers.1.moe.up_proj.weight": (4, 64, HIDDEN),
            "model.layers.1.moe.down_proj.weight": (4, HIDDEN, 64),
        },
    ),
}
# By architecture that is refused, as those above: its router of experts is none that vLLM's CPU build computes.
UNROUTED: dict[str, tuple[dict[str, Any], Shapes]] = {
    "Step3p5ForCausalLM": (
        STEP
        | {"architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "num_attention_groups": 2}
        | {"share_expert_dim": 64, "moe_layers_enum": "1", "layer_types": ["full_attention", "sliding_attention"]}
        | {"sliding_window": 64, "moe_router_activation": "sigmoid", "use_head_wise_attn_gate": True},
        ENDS
        | _layers("model.layers", NORMS | _attention(q_proj=128, k_proj=64, v_proj=64, g_proj=4))
        | _layers("model.layers", {"self_attn.o_proj.weight": (HIDDEN, 128)})
        | _layers("model.layers", {"self_attn.q_norm.weight": (32,), "self_attn.k_norm.weight": (32,)})
        | _layers("model.layers", _mlp("mlp", INNER), (0,))
        | _layers("model.layers", _mlp("share_expert", 64), (1,))
        | _layers("model.layers", {"moe.gate.weight": (4, HIDDEN), "moe.router_bias": (4,)}, (1,))
        | {
            "model.layers.1.moe.gate_proj.weight": (4, 64, HIDDEN),
            "model.layers.1.moe.up_proj.weight": (4, 64, HIDDEN),
            "model.layers.1.moe.down_proj.weight": (4, HIDDEN, 64),
        },
    ),
}
# By architecture that is refused: the family whose weights it is given, and what its config.json says.
TINY: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 128, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": VOCABULARY, "num_local_experts": 4, "intermediate_size": 64, "max_position_embeddings": 512,
}  # fmt: skip
REFUSED_AS: dict[str, tuple[str, dict[str, Any]]] = {
    "Rnj1ForCausalLM": ("gemma3", {}),
    "InklingForCausalLM": ("llama", {"model_type": "inkling_model"}),
    "MiniMaxM3SparseForCausalLM": ("llama", {"model_type": "minimax_m3_vl_text"}),
    "JinaForRanking": ("qwen3", {}),
    "Qwen2ForRewardModel": ("qwen2", {}),
    "Qwen2ForProcessRewardModel": ("qwen2", {}),
    "OpenAIPrivacyFilterForTokenClassification": ("llama", TINY | {"model_type": "openai_privacy_filter"}),
    "GPT2ForSequenceClassification": ("gpt2", {}),
    "PhiMoEForCausalLM": ("llama", {}),
}


def make(name: str, directory: Path) -> Path:
    """Its files, in float32."""
    import torch
    from safetensors.torch import save_file

    config, shapes = (UNREFERENCED | UNROUTED)[name]
    directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        tensor: torch.randn(*shape, generator=generator) * 0.2 + ("norm" in tensor) for tensor, shape in shapes.items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    return directory
