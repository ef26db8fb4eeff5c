"""Eight random Llamas of two sizes, as a Hugging Face folder and as a GGUF file each, made once and kept.

All have the tokenizer of the quickstart's llama. The rows of the output layer for special tokens and
for those that are no ASCII text are zero: no answer ends by itself, and every token can be shown at once.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

_SHAPES: dict[str, dict[str, int]] = {
    "large": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8},
    "small": {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 7, "num_attention_heads": 6},
}
_EACH = 4
CONTEXT = 2048
LARGE = tuple(f"large-{i}" for i in range(_EACH))
NAMES = (*LARGE, *(f"small-{i}" for i in range(_EACH)))
_SHOWN = re.compile(r"[!-~ĠĊ]+")  # of GPT-2's alphabet of bytes: printable ASCII, space, line feed


def make(directory: Path, tokenizer: Path, gguf_python: Path) -> None:
    """`directory`/NAME for each of NAMES, with model.gguf in it; what is there already stays."""
    for seed, name in enumerate(NAMES):
        folder = directory / name
        if not (folder / "model.gguf").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _save(folder, tokenizer, _SHAPES[name.partition("-")[0]], seed)
            subprocess.run([gguf_python, "-m", "benchmarks.peers.gguf_file", folder], check=True)


def words(tokenizer: Path) -> list[str]:
    """Words that are one token each behind a space."""
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    return sorted(token[1:] for token in vocabulary if re.fullmatch("Ġ[a-z]{3,}", token))


def _save(folder: Path, tokenizer: Path, shape: dict[str, int], seed: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    ids: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes: dict[str, Any] = {**shape, "vocab_size": len(vocabulary), "num_key_value_heads": 2, "head_dim": 64}
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **ids, max_position_embeddings=CONTEXT, initializer_range=0.08))
    hidden = [token for name, token in vocabulary.items() if token < 6 or not _SHOWN.fullmatch(name)]
    with torch.no_grad():
        model.lm_head.weight[hidden] = 0
    model.save_pretrained(folder)
