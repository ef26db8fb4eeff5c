"""A backend with one model in plain buffers: what the sidecar does with ranges and slabs, without them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # before torch or triton is imported: kernels run on the CPU

import numpy as np
import pytest
import torch
import triton_interpreter  # noqa: F401  # imported for its effect: Triton's interpreter is quicker
from numpy.typing import NDArray

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.sampling import SamplerState
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing


class Rig:
    """`kv_blocks` blocks full of NaN at first: whatever is read before it is written shows."""

    def __init__(self, directory: Path, kv_blocks: int = 64, task: str = "", **options: Any) -> None:
        self.directory = directory
        self.backend = TorchBackend(**options)
        self.layout = self.backend.describe(directory, 0, task)
        self.weights: NDArray[np.uint8] = np.empty(self.layout.image_bytes, dtype=np.uint8)
        starts = [rank * self.layout.weight_bytes for rank in range(self.layout.ranks)]
        parts = [self.weights[start : start + self.layout.weight_bytes] for start in starts]
        self.backend.register("model", directory, self.layout, *parts)
        fill(look(directory, self.layout), [self.weights], StageRing())
        self.kv: NDArray[np.uint8] = np.full((len(parts), kv_blocks * self.layout.kv_block_bytes), 255, dtype=np.uint8)
        self.backend.bind_kv(self.layout.kv_shape, *self.kv)
        self._free = np.random.default_rng(0).permutation(kv_blocks).astype(np.int32)

    def table(self, tokens: int) -> NDArray[np.int32]:
        """A scattered block table for so many tokens; blocks are not given twice."""
        count = -(-tokens // self.layout.kv_block_tokens)
        table, self._free = self._free[:count], self._free[count:]
        assert len(table) == count, "the rig has too few blocks for this test"
        return table

    def input(
        self, tokens: Sequence[int], position: int, table: NDArray[np.int32], sampler: SamplerState | None = None
    ) -> StepInput:
        return StepInput(tokens, position, table, sampler)

    def logits(self, tokens: Sequence[int], position: int, table: NDArray[np.int32]) -> torch.Tensor:
        """After the last of `tokens`, float32 [vocab]."""
        return self.backend.logits("model", [StepInput(tokens, position, table, None)])[0]


@pytest.fixture(scope="session")
def rig() -> type[Rig]:
    return Rig


@pytest.fixture(scope="session")
def reference() -> Callable[[Path, Sequence[int]], torch.Tensor]:
    """transformers' logits for a whole sequence, float32 [tokens, vocab]."""
    from transformers import AutoModelForCausalLM

    models: dict[Path, Any] = {}

    def logits(directory: Path, tokens: Sequence[int]) -> torch.Tensor:
        if directory not in models:
            models[directory] = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        with torch.no_grad():
            result: torch.Tensor = models[directory](torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return result

    return logits


@pytest.fixture
def prompt() -> list[int]:
    return [int(token) for token in np.random.default_rng(7).integers(6, 384, size=60)]


@pytest.fixture
def with_config(tmp_path: Path) -> Callable[..., Path]:
    """with_config(directory, name=value, ...) -> a copy with these fields of config.json (None removes one)."""

    def change(directory: Path, **fields: Any) -> Path:
        copy = tmp_path / f"changed-{len(list(tmp_path.iterdir()))}"
        copy.mkdir()
        for file in directory.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        config = json.loads((copy / "config.json").read_text())
        config.update(fields)
        kept = {name: value for name, value in config.items() if name not in fields or value is not None}
        (copy / "config.json").write_text(json.dumps(kept))
        return copy

    return change
