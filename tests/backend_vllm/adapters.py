"""Random adapters (LoRA), saved as PEFT saves them, and models with one merged into their weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PREFIX = "base_model.model."
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(
    base: Path, directory: Path, *, seed: int, rank: int = 8, targets: Iterable[str] = ALL, **settings: Any
) -> Path:
    """Of the base's linear layers of these names; in float32. `settings`: in place of those of adapter_config.json."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (outer, inner) in _layers(base, targets).items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = torch.randn(rank, inner, generator=generator) * 0.05
        tensors[f"{PREFIX}{name}.lora_B.weight"] = torch.randn(outer, rank, generator=generator) * 0.05
    directory.mkdir(parents=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets), "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(config | settings))
    return directory


def merge(base: Path, adapter: Path, directory: Path) -> Path:
    """The base with `B A alpha / r` added to its weights."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(base, directory)
    weights, matrices = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    for name, a in matrices.items():
        if name.endswith(".lora_A.weight"):
            b = matrices[name.replace("lora_A", "lora_B")]
            target = name.removeprefix(PREFIX).replace(".lora_A", "")
            weights[target] = weights[target] + b @ a * (config["lora_alpha"] / config["r"])
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _layers(base: Path, targets: Iterable[str]) -> dict[str, tuple[int, int]]:
    from safetensors import safe_open

    with safe_open(base / "model.safetensors", "pt") as file:
        shapes = {name.removesuffix(".weight"): tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return {name: shape for name, shape in shapes.items() if name.rpartition(".")[2] in targets and len(shape) == 2}
