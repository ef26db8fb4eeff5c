"""The four architectures in miniature, with two shapes of the KV cache among them.

Two share a KV shape and two have their own, some tie their embeddings and some do not, so that a pool of these four
meets every case of memory that a pool of real models meets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

MAX_POSITIONS = 2048
SHARED = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.08,  # of so narrow a model: with the usual 0.02 it learns several times slower
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A tiny model: its folder and served name, how to build it, and the seed of its weights and data order."""

    name: str
    seed: int
    config: Callable[..., PretrainedConfig]
    model: Callable[..., PreTrainedModel]
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool
    rope_theta: float

    def build(self, vocabulary: int, special: dict[str, Any]) -> PreTrainedModel:
        """An untrained model (float32). `special` holds bos_token_id, eos_token_id and pad_token_id."""
        config = self.config(
            vocab_size=vocabulary,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            tie_word_embeddings=self.tied,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            sliding_window=None,
            **SHARED,
            **special,
        )
        return self.model(config)


ARCHITECTURES = (
    Architecture("llama", 11, LlamaConfig, LlamaForCausalLM, 4, 2, 32, tied=False, rope_theta=10_000.0),
    Architecture("mistral", 22, MistralConfig, MistralForCausalLM, 4, 1, 32, tied=False, rope_theta=10_000.0),
    Architecture("qwen2", 33, Qwen2Config, Qwen2ForCausalLM, 8, 4, 16, tied=True, rope_theta=1_000_000.0),
    Architecture("qwen3", 44, Qwen3Config, Qwen3ForCausalLM, 4, 2, 32, tied=True, rope_theta=1_000_000.0),
)
