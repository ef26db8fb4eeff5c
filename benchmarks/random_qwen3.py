"""A random Qwen3 of 8 layers in a torch engine on a CPU: what benchmarks of single steps compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing

MODEL = "model"
"""the name under which `hold` registers it"""


def save(directory: Path, **fields: Any) -> None:
    """config.json with these fields beside a shape of its own, and float32 weights, the same each time; no tokenizer.

    Hidden size 512, 8 heads of 64 features, 4 of them with KV.
    """
    config = AutoConfig.for_model(
        "qwen3",
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        **fields,
    )
    torch.manual_seed(0)
    disable_progress_bar()
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)


def hold(engine: TorchBackend, directory: Path, blocks: int) -> Layout:
    """Register it with its weights and a KV cache of so many blocks, all zero."""
    layout = engine.describe(directory, 0)
    weights = np.empty(layout.weight_bytes, dtype=np.uint8)
    engine.register(MODEL, directory, layout, weights)
    fill(look(directory, layout), [weights], StageRing())
    engine.bind_kv(layout.kv_shape, np.zeros(blocks * layout.kv_block_bytes, dtype=np.uint8))
    return layout
