"""gpt-oss as it is published, experts in MXFP4: its logits are those of transformers with the experts' values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from backend_vllm.families import needs_amx
from backend_vllm.reference import logits as reference_logits
from safetensors.torch import load_file, save_file
from torch import Tensor

from aegaeon_sidecar.domain.errors import ModelError

TOKENS = [5 + 3 * j % 240 for j in range(90)]
BLOCKS = [17, 3, 11]
# E2M1 of the OCP Microscaling Formats (MX) Specification 1.0; the sign is the highest of four bits.
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def dequantised(blocks: Tensor, scales: Tensor) -> Tensor:
    """uint8 [experts, outer, inner / 32, 16], the lower half of a byte first, and powers of two, biased by 127, as
    bfloat16 [experts, inner, outer], which holds each value exactly."""
    halves = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    values = torch.cat([VALUES, -VALUES])[halves.int()] * 2.0 ** (scales.float() - 127)[..., None]
    return values.flatten(-2).transpose(1, 2).contiguous().bfloat16()


def plain(quantised: Path, directory: Path) -> Path:
    """The same model without quantisation."""
    directory.mkdir()
    tensors = load_file(quantised / "model.safetensors")
    experts = {name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")}
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    made = {name: dequantised(tensors[f"{name}_blocks"], tensors[f"{name}_scales"]) for name in experts}
    save_file(kept | made, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((quantised / "config.json").read_text())
    del config["quantization_config"]
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def folders(family: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model with experts in MXFP4, and with the same ones in bfloat16."""
    quantised = family("mxfp4", "bfloat16")
    return quantised, plain(quantised, tmp_path_factory.mktemp("same") / "plain")


@needs_amx
def test_experts_in_mxfp4_are_as_near_to_transformers_as_the_same_ones_in_bfloat16(
    folders: tuple[Path, Path], vllm_backend: Any, rig: Any, tmp_path: Path
) -> None:
    wanted = torch.from_numpy(reference_logits([folders[1]], TOKENS, tmp_path / "logits.npz")["plain"])
    models = [rig(vllm_backend("bfloat16"), folder) for folder in folders]
    rows = [torch.stack([m.logits([token], at, BLOCKS) for at, token in enumerate(TOKENS)]) for m in models]
    quantised, same = (float((row - wanted).abs().mean() / wanted.std()) for row in rows)
    assert quantised < min(0.1, 1.5 * same)  # 0.040 and 0.038 of a standard deviation


@needs_amx
def test_experts_in_mxfp4_give_the_same_bits_after_a_switch(
    folders: tuple[Path, Path], vllm_backend: Any, rig: Any
) -> None:
    model = rig(vllm_backend("bfloat16"), folders[0])
    first = model.logits(TOKENS, 0, BLOCKS)
    model.scramble()
    assert not torch.equal(model.logits(TOKENS, 0, BLOCKS), first), "a copy of the weights is used"
    model.load()
    assert torch.equal(model.logits(TOKENS, 0, BLOCKS[::-1]), first)


def test_a_cpu_without_amx_refuses_mxfp4_in_one_sentence(
    folders: tuple[Path, Path], vllm_backend: Any, rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = vllm_backend("bfloat16")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)  # what vLLM asks for
    with pytest.raises(ModelError, match=r"^vLLM [\w.]+ has no kernel for MXFP4 experts on this device \(cpu\)$"):
        backend.describe(folders[0], 0)
    assert rig(backend, folders[1]).logits(TOKENS, 0, BLOCKS).isfinite().all()
