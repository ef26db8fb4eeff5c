"""Further families of models as tiny random ones: each is proved and compared with transformers once, in one test."""

from __future__ import annotations

from typing import Any

from backend_vllm.families import BASE, EXPERTS, HEAD, MLA, PLAIN

WINDOW = {"sliding_window": 64}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
SHORT = {"original_max_position_embeddings": 48}
FEW = {"num_local_experts": 4, "num_experts_per_tok": 2}
SHARED = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64}

ONE_GROUP = {"n_group": 1, "topk_group": 1}

NEAR = {"apertus": 1e-3, "bloom": 3e-4, "granitemoe": 5e-5}
"""how near to transformers' a logit is, of the largest, where it is not 2e-5

granitemoe: at token 72 transformers' own float32 is 3.7e-5 from its float64 (Zen 5, AVX-512).
"""
# By family: transformers' configuration class and what it is given; whether its image is baked.
ZOO: dict[str, tuple[str, dict[str, Any], bool]] = {
    "llama31": (
        "LlamaConfig",
        BASE | HEAD | {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                           "high_freq_factor": 4.0, "rope_theta": 5e5, **SHORT}},
        False,
    ),
    "qwen25yarn": (
        "Qwen2Config",
        BASE | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, **SHORT}},
        False,
    ),
    "mistralwindow": ("MistralConfig", BASE | HEAD | WINDOW, False),
    "ministral3": ("Ministral3Config", BASE | HEAD, False),
    "qwen2moe": ("Qwen2MoeConfig", BASE | EXPERTS | {"shared_expert_intermediate_size": 64}, True),
    "glm4moe": ("Glm4MoeConfig", BASE | HEAD | EXPERTS | SHARED | {"first_k_dense_replace": 1}, True),
    "phi4mini": ("Phi3Config", BASE | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True}, False),
    "granitemoe": ("GraniteMoeConfig", BASE | FEW, True),
    "nemotron": ("NemotronConfig", BASE, False),
    "olmo3": ("Olmo3Config", BASE | WINDOW, False),
    "olmoe": ("OlmoeConfig", BASE | {"num_experts": 6, "num_experts_per_tok": 2}, True),
    "flexolmo": ("FlexOlmoConfig", BASE | {"num_experts": 4, "num_experts_per_tok": 2}, True),
    "ernie45": ("Ernie4_5Config", BASE | HEAD, False),
    "ernie45moe": (
        "Ernie4_5_MoeConfig",
        BASE | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 1,
                "moe_layer_start_index": 1},
        True,
    ),
    "hunyuandense": ("HunYuanDenseV1Config", BASE | HEAD, False),
    "hunyuanmoe": ("HunYuanMoEV1Config", BASE | HEAD | {"num_experts": 4, "moe_topk": [2, 2]}, True),
    "exaone4": ("Exaone4Config", BASE | WINDOW, False),
    "seedoss": ("SeedOssConfig", BASE | HEAD, False),
    "apertus": ("ApertusConfig", BASE, True),
    "arcee": ("ArceeConfig", BASE, False),
    "olmo": ("OlmoConfig", BASE, False),
    "phi": ("PhiConfig", BASE, True),
    "glm": ("GlmConfig", BASE | HEAD, False),
    "gptj": (
        "GPTJConfig",
        PLAIN | {"n_embd": 128, "n_layer": 2, "n_head": 4, "rotary_dim": 16, "n_positions": 512},
        False,
    ),
    "cohere2": ("Cohere2Config", BASE | {"sliding_window": 128}, False),
    "granitemoeshared": ("GraniteMoeSharedConfig", BASE | FEW | {"shared_intermediate_size": 64}, True),
    "bloom": ("BloomConfig", PLAIN | {"hidden_size": 128, "n_layer": 2, "n_head": 4}, True),
    "cohere2moe": (
        "Cohere2MoeConfig",
        BASE | HEAD | {"num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128},
        True,
    ),
    "exaonemoe": (
        "ExaoneMoeConfig",
        BASE | WINDOW | {"num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2,
                         "sliding_window_pattern": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1},
        True,
    ),
    "graniteswa": ("GraniteSWAConfig", BASE | WINDOW | MIXED, False),
    "granitemoeswa": ("GraniteMoeSWAConfig", BASE | WINDOW | MIXED | FEW | {"shared_intermediate_size": 64}, True),
    "hyperclovax": ("HyperCLOVAXConfig", BASE, False),
    "jais2": ("Jais2Config", BASE | {"num_key_value_heads": 4}, False),
    "minicpm3": (
        "MiniCPM3Config",
        BASE | {"num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32,
                "qk_rope_head_dim": 32, "v_head_dim": 64},
        False,
    ),
    "gptbigcode": ("GPTBigCodeConfig", PLAIN | {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 512}, False),
    "cwm": ("CwmConfig", BASE | HEAD | WINDOW, False),
    # What the published config.json says beyond transformers' own settings, and vLLM's class reads.
    "afmoe": (
        "AfmoeConfig",
        BASE | HEAD | EXPERTS | WINDOW | MIXED | {"num_dense_layers": 1, "num_shared_experts": 1, "mup_enabled": True,
                                                  "score_func": "sigmoid", "route_norm": True, **ONE_GROUP},
        True,
    ),
    "hyv3": (
        "HYV3Config",
        BASE | HEAD | EXPERTS | {"num_shared_experts": 1, "first_k_dense_replace": 1, "expert_hidden_dim": 64,
                                 "qk_norm": True, "route_norm": True, "router_scaling_factor": 1.5},
        True,
    ),
    "vaultgemma": ("VaultGemmaConfig", BASE | HEAD | WINDOW | {"query_pre_attn_scalar": 32}, False),
}  # fmt: skip

MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_conv": 4,
         "mamba_expand": 2}  # fmt: skip
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
LATENT = {**BASE, **MLA, **SHARED, "num_key_value_heads": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
          "q_lora_rank": 64}  # fmt: skip
CONV = {"layer_types": ["conv", "full_attention"]}

# By family that is refused: transformers' configuration class, what it is given, and what the refusal says.
STATE, LATENT_WORDS = "keeps a state per sequence", "multi-head latent attention"
ZOO_REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "qwen35": ("Qwen3_5TextConfig", BASE | HEAD | LINEAR, STATE),
    "granite4": (
        "GraniteMoeHybridConfig",
        BASE | MAMBA | FEW | {"shared_intermediate_size": 64, "layer_types": ["mamba", "attention"]},
        STATE,
    ),
    "nemotronh": (
        "NemotronHConfig",
        BASE | HEAD | {"num_hidden_layers": 4, "hybrid_override_pattern": "M*M-", "mamba_num_heads": 8,
                       "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 1},
        STATE,
    ),
    "falconh1": ("FalconH1Config", BASE | MAMBA | {"mamba_d_ssm": 256}, STATE),
    "lfm2": ("Lfm2Config", BASE | CONV, STATE),
    "lfm2moe": ("Lfm2MoeConfig", BASE | EXPERTS | CONV | {"num_dense_layers": 1}, STATE),
    "deepseek3": ("DeepseekV3Config", LATENT, LATENT_WORDS),
    "hyv4": (
        "HYV4Config",
        BASE | {"num_key_value_heads": 4, "head_dim": 64, "n_routed_experts": 4, "num_experts_per_tok": 2,
                "v_head_dim": 64, "moe_intermediate_size": 64, "q_lora_rank": 64, "kv_lora_rank": 32,
                "qk_nope_head_dim": 32, "qk_rope_head_dim": 32},
        LATENT_WORDS,
    ),
    "glm4moelite": ("Glm4MoeLiteConfig", LATENT, LATENT_WORDS),
    "gemma4heads": (
        "Gemma4TextConfig",
        BASE | HEAD | WINDOW | {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
                                "global_head_dim": 64, "num_kv_shared_layers": 0},
        "KV pages differ from those of other layers",
    ),
}  # fmt: skip
# By architecture whose files vLLM's class does not read whole, or whose experts its CPU build does not compute:
# transformers' configuration class and what it is given, with what published ones say beyond that.
SIZES = {"head_dim": 48, "v_head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
UNREAD: dict[str, tuple[str, dict[str, Any]]] = {
    "DbrxForCausalLM": (
        "DbrxConfig",
        {**PLAIN, "d_model": 128, "n_heads": 4, "n_layers": 2, "max_seq_len": 512,
         "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
         "ffn_config": {"hidden_size": 128, "ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2}},
    ),
    "LagunaForCausalLM": (
        "LagunaConfig", BASE | HEAD | EXPERTS | WINDOW | MIXED | {"shared_expert_intermediate_size": 64}
    ),
    "MiniMaxM2ForCausalLM": (
        "MiniMaxM2Config",
        BASE | HEAD | FEW | {"rotary_dim": 16, "scoring_func": "sigmoid", "use_routing_bias": True},
    ),
    "MiMoV2FlashForCausalLM": (
        "MiMoV2FlashConfig",
        BASE | SIZES | {f"swa_{name}": size for name, size in SIZES.items()}
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "layernorm_epsilon": 1e-5,
           "layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"],
           "hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 1], "sliding_window": 64, "sliding_window_size": 64,
           "rope_theta": 5e6, "swa_rope_theta": 1e4, "partial_rotary_factor": 0.334},
    ),
    "MellumForCausalLM": ("MellumConfig", BASE | HEAD | EXPERTS | WINDOW | MIXED),
}  # fmt: skip
