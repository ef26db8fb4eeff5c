"""Tests that need vLLM (`make test-vllm`): skipped where it is not installed."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_vllm.families import AVX512, FAMILIES, NO_INT4, REFUSED, quantise, quantise_experts, save
from numpy.typing import NDArray
from sidecar.conftest import folder, one_thread, scheduler  # noqa: F401  # fixtures of these tests too

from aegaeon_sidecar.backends import AdapterLimits, Backend, StepInput
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        item.add_marker(pytest.mark.vllm)
        item.add_marker(pytest.mark.filterwarnings("default"))  # vLLM's own, of its dependencies
        if find_spec("vllm") is None:
            item.add_marker(pytest.mark.skip(reason="needs vLLM, in an environment of its own: make test-vllm"))


Open = Callable[..., Any]


@pytest.fixture(scope="session")
def vllm_backend() -> Open:
    """vllm_backend(dtype="float32", adapters=None) -> a backend; vLLM is imported at the first one."""

    def opened(dtype: str = "float32", adapters: AdapterLimits | None = None) -> Backend:
        from aegaeon_sidecar.backends.vllm import open_backend

        return open_backend(device="cpu", ranks=1, dtype=dtype, adapters=adapters)

    return opened


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """family("gemma2", dtype="float32") -> its directory; "gptq", "awq": llamas in bfloat16, "mxfp4": a gpt-oss."""
    made: dict[tuple[str, str], Path] = {}
    root = tmp_path_factory.mktemp("families")

    def directory(name: str, dtype: str = "float32") -> Path:
        if (name, dtype) not in made:
            target = root / dtype / name
            if name in ("gptq", "awq"):
                if not AVX512:
                    pytest.skip(NO_INT4)
                made[name, dtype] = quantise(name, directory("llama", "bfloat16"), target)
            elif name == "mxfp4":
                made[name, dtype] = quantise_experts(directory("gptoss", "bfloat16"), target)
            else:
                kind, settings, _ = (FAMILIES | REFUSED)[name]
                made[name, dtype] = save(kind, settings, target, dtype)
        return made[name, dtype]

    return directory


class Rig:
    """One model in plain buffers. `kv_blocks` blocks full of NaN: whatever is read before it is written shows."""

    def __init__(self, backend: Any, directory: Path, scratch: Path, kv_blocks: int = 24, task: str = "") -> None:
        self.backend, self.name = backend, directory.name
        self.layout: Layout = backend.describe(directory, 0, task)
        self.image = self._image(directory, scratch / f"{self.name}.image")
        self.weights: NDArray[np.uint8] = np.full(self.layout.image_bytes, 255, dtype=np.uint8)
        backend.register(self.name, directory, self.layout, self.weights)
        self.kv: NDArray[np.uint8] = np.full(kv_blocks * self.layout.kv_block_bytes, 255, dtype=np.uint8)
        backend.bind_kv(self.layout.kv_shape, self.kv)
        self.load()

    def _image(self, directory: Path, file: Path) -> NDArray[np.uint8]:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
        try:
            os.truncate(descriptor, self.layout.image_bytes)
            fill(look(directory, self.layout), [], StageRing(), into_file=descriptor)
            return np.fromfile(file, dtype=np.uint8)
        finally:
            os.close(descriptor)

    def load(self) -> None:
        self.weights[:] = self.image

    def scramble(self) -> None:
        """Another model's weights, as it were."""
        self.weights[:] = np.random.default_rng(0).integers(0, 120, size=len(self.weights), dtype=np.uint8)

    def logits(self, tokens: list[int], position: int, blocks: list[int]) -> Any:
        part = StepInput(tokens, position, np.array(blocks, dtype=np.int32), None)
        return self.backend.logits(self.name, [part])[0]


@pytest.fixture
def rig(tmp_path: Path) -> Callable[..., Rig]:
    """rig(backend, directory, task="embed") -> the model, its weights loaded."""
    return lambda backend, directory, task="": Rig(backend, directory, tmp_path, task=task)
