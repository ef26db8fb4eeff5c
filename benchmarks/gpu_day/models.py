"""Three random models of one shape, made on the device itself: nothing has to be carried to the machine.

To write three times 16 GB would take a slow disk most of a loan. Models therefore share the shards of their later
layers (hard links); what differs is enough that weights of another model never give the same tokens.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu_day.where import Where
from safetensors.torch import save_file
from transformers import LlamaConfig

from aegaeon_cli.models.tokenizer import train_tokenizer
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.tensors import tensor_shapes

NAMES = ("one", "two", "three")
_DOCS = Path(__file__).parents[2] / "docs"
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Shape:
    """Fields of a LlamaConfig, and what decides how long it takes to make three. `own_layers`: not shared."""

    fields: dict[str, Any]
    own_layers: int
    std: float = 0.02


EIGHT_B = Shape(
    {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "dtype": "bfloat16",
    },
    own_layers=8,
)  # Llama-3-8B's
TINY = Shape(
    {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 2048,
        "max_position_embeddings": 2048,
        "dtype": "float32",
    },
    own_layers=2,
    std=0.08,
)


def make(folder: Path, shape: Shape, device: str) -> dict[str, Path]:
    """`folder`/NAME for each of NAMES; those that are there stay."""
    made = {name: folder / name for name in NAMES}
    for seed, directory in enumerate(made.values()):
        if not directory.exists():
            draft = directory.with_suffix(".new")
            shutil.rmtree(draft, ignore_errors=True)
            _write(draft, shape, seed, device, made[NAMES[0]] if seed else None)
            draft.rename(directory)
    return made


def _write(directory: Path, shape: Shape, seed: int, device: str, first: Path | None) -> None:
    """`first`: whose shards of later layers it has too."""
    directory.mkdir(parents=True)
    ids: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    LlamaConfig(**shape.fields, **ids, architectures=["LlamaForCausalLM"]).save_pretrained(directory)
    train_tokenizer(path.read_text("utf-8") for path in sorted(_DOCS.glob("*.md"))).save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps(ids))
    shards = _shards(directory)
    for number, (shard, tensors) in enumerate(shards.items()):
        if first is not None and shard.startswith("layer") and int(shard[6:-12]) >= shape.own_layers:
            os.link(first / shard, directory / shard)
            continue
        random = torch.Generator(device).manual_seed(1000 * seed + number)
        dtype = _DTYPES[shape.fields["dtype"]]
        made = {name: _tensor(name, size, shape.std, dtype, random) for name, size in tensors.items()}
        save_file(made, directory / shard, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, tensors in shards.items() for name in tensors}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _shards(directory: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    """By file, the shapes of its tensors: a file for each layer, one for what is outside of them."""
    shards: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, size in tensor_shapes(read_spec(directory)).items():
        layer = name.split(".")[2] if name.startswith("model.layers.") else ""
        shards.setdefault(f"layer-{layer}.safetensors" if layer else "rest.safetensors", {})[name] = size
    return shards


def _tensor(name: str, size: tuple[int, ...], std: float, dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    """Norms are ones; all else is noise of this standard deviation."""
    if len(size) == 1:
        return torch.ones(size, dtype=dtype)
    return torch.empty(size, dtype=dtype, device=random.device).normal_(std=std, generator=random).cpu()


def shape_of(where: Where) -> Shape:
    """The shape that a plan's models have."""
    shape = TINY if where.small else EIGHT_B
    if not where.layers:
        return shape
    own = max(1, shape.own_layers * where.layers // shape.fields["num_hidden_layers"])
    return replace(shape, fields=shape.fields | {"num_hidden_layers": where.layers}, own_layers=own)


def weight_bytes(where: Where) -> int:
    """Of one of the models, which are made."""
    return sum(file.stat().st_size for file in (where.models / NAMES[0]).glob("*.safetensors"))
