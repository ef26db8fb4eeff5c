"""What is reserved beside the slabs: as the manifest says, else an estimate of what makes it grow."""

from __future__ import annotations

from typing import Any

import pytest
from operator_objects import gpu_pool

from aegaeon_operator.reconcile.processes import sidecar_settings
from aegaeon_operator.spec.engines import MAX_GRAPHS
from aegaeon_operator.spec.overhead import outside_bytes
from aegaeon_operator.spec.resources import GpuPoolSpec
from aegaeon_sidecar import backends

MIB = 1 << 20
CUDA = {"device": "cuda:0", "resourceName": "nvidia.com/gpu", "dtype": "float32"}


def spec(memory: dict[str, Any] | None = None, **changes: Any) -> GpuPoolSpec:
    base = gpu_pool()["spec"]
    kept = {name: size for name, size in {**base["memory"], **(memory or {})}.items() if size}
    return GpuPoolSpec.model_validate({**base, "memory": kept, **changes})


def test_a_size_of_the_manifest_counts_alone() -> None:
    assert outside_bytes(spec({"outsideSlabs": "3Gi"}, tuning={"prefillChunkTokens": 4096})) == 3 << 30


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"tuning": {"prefillChunkTokens": 1024}}, 512 * 4 * 32768 * 4),
        ({"tuning": {"maxBatch": 32}}, 16 * 262144 * 12),
        ({"accelerator": {"dtype": "bfloat16"}}, -512 * 4 * 32768 * 2),
        ({"backend": "vllm"}, 1024 * MIB),
        ({"accelerator": CUDA}, 1536 * MIB + 48 * 262144 * 12),
        ({"accelerator": CUDA, "tuning": {"maxBatch": 16}}, 1536 * MIB + 48 * 262144 * 12),
        ({"accelerator": CUDA, "tuning": {"maxGraphs": 100}}, 1424 * MIB + 48 * 262144 * 12),
        ({"tuning": {"maxGraphs": 100}}, 0),
        ({"tuning": {"maxPooledTokens": 1024}}, 512 * 4 * 32768 * 4),
    ],
)
def test_longer_chunks_larger_batches_and_wider_numbers_need_more(changes: dict[str, Any], more: int) -> None:
    assert outside_bytes(spec(**changes)) - outside_bytes(spec()) == more


@pytest.mark.parametrize(
    ("changes", "batch"), [({}, 16), ({"accelerator": CUDA}, 64), ({"accelerator": CUDA, "tuning": {"maxBatch": 8}}, 8)]
)
def test_a_step_has_as_many_sequences_as_its_device_computes_in_one_pass(changes: dict[str, Any], batch: int) -> None:
    assert sidecar_settings("unified", spec(**changes))["max_batch"] == batch


def test_an_engine_gets_the_number_of_graphs_where_the_manifest_changes_it() -> None:
    """One of the release before knows no such setting, and by default both sides take the same."""
    assert "max_graphs" not in sidecar_settings("unified", spec())
    assert sidecar_settings("unified", spec(tuning={"maxGraphs": 7}))["max_graphs"] == 7
    assert MAX_GRAPHS == backends.MAX_GRAPHS


def test_an_engine_gets_the_tokens_of_pooled_prompts_where_the_manifest_has_them() -> None:
    """One of the release before knows no such setting."""
    assert "max_pooled_tokens" not in sidecar_settings("unified", spec())
    assert sidecar_settings("unified", spec(tuning={"maxPooledTokens": 4096}))["max_pooled_tokens"] == 4096


def test_a_gpu_needs_no_size_and_its_engine_gets_the_reservation() -> None:
    memory = sidecar_settings("unified", spec({"deviceBytes": None}, accelerator=CUDA))["memory"]
    assert memory["device_bytes"] is None
    assert memory["outside_bytes"] == outside_bytes(spec(accelerator=CUDA))
