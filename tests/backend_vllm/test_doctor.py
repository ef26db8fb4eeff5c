"""What `aegaeon doctor` says about vLLM, without importing it, is what the backend does."""

from __future__ import annotations

from typing import Any

import pytest
from backend_vllm.families import AVX512, REFUSED

from aegaeon_cli.doctor import examine
from aegaeon_cli.findings import Verdict
from aegaeon_sidecar.backends.vllm.hooks import HOOKS
from aegaeon_sidecar.domain.errors import ModelError


@pytest.fixture(scope="module")
def finding() -> Any:
    return next(found for found in examine() if found.what == "vllm")


def test_doctor_names_the_version_the_hooks_and_the_attention_that_a_model_gets(
    finding: Any, family: Any, vllm_backend: Any
) -> None:
    layout = vllm_backend().describe(family("llama"), 0)
    from aegaeon_sidecar.backends.vllm import surface

    assert finding.verdict is Verdict.GOOD
    assert f" {surface.VERSION}, all {len(HOOKS)} hooks found" in f" {finding.text}"
    attention = layout.kv_shape.split("-")[1]
    assert finding.text.endswith(f"attention {attention} in blocks of {layout.kv_block_tokens} tokens")


def test_doctor_names_the_library_of_kernels_that_vllm_loads(vllm_backend: Any) -> None:
    vllm_backend()
    from aegaeon_sidecar.backends.vllm.kernels import LIBRARY

    kernels = next(found for found in examine() if found.what == "vllm's kernels")
    assert kernels.text.startswith(LIBRARY.name)
    assert ("no kernels for weights of 4 bits" in kernels.remedy) is not AVX512


WORDS = {
    "mamba2": "state per sequence",
    "deepseek2": "latent attention",
    "qwen3next": "state per sequence",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_doctor_says_is_refused_is_refused_with_these_words(
    name: str, finding: Any, family: Any, vllm_backend: Any
) -> None:
    with pytest.raises(ModelError) as refused:
        vllm_backend().describe(family(name), 0)
    assert WORDS[name] in finding.remedy
    assert WORDS[name] in str(refused.value)
