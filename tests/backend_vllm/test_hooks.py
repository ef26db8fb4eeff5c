"""The names of vLLM that the backend uses are there, with the arguments that it gives them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aegaeon_sidecar.backends.vllm import open_backend
from aegaeon_sidecar.backends.vllm.hooks import HOOKS, VARIABLES, differences, installed
from aegaeon_sidecar.domain.errors import BackendError


def test_the_installed_vllm_has_every_hook() -> None:
    root = installed()
    assert root is not None
    assert list(differences(root)) == []


@pytest.mark.skipif("VLLM_CUDA" not in os.environ, reason="needs the unpacked wheel for GPUs: make test-vllm-hooks")
def test_the_vllm_for_gpus_has_every_hook() -> None:
    assert list(differences(Path(os.environ["VLLM_CUDA"]) / "vllm")) == []


def test_a_vllm_without_the_hooks_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "forward_context.py").write_text("def create_forward_context(attn_metadata, more): ...\n")
    found = list(differences(tmp_path))
    assert len(found) == len(HOOKS) + len(VARIABLES)
    assert "create_forward_context has no vllm_config, slot_mapping" in found


def test_an_engine_whose_kernels_cannot_be_loaded_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    open_backend(device="cpu", ranks=1, dtype="float32")
    from aegaeon_sidecar.backends.vllm import kernels

    monkeypatch.setattr(kernels, "OPERATOR", "no_such_operator")
    with pytest.raises(BackendError, match=r"kernels cannot be loaded .*no_such_operator"):
        open_backend(device="cpu", ranks=1, dtype="float32")
