"""RMS norms by vLLM's kernels for CPUs, beside those that vLLM composes of torch's operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

FEATURES = (64, 192, 512, 4096)
EPSILON = 1e-6


@pytest.fixture(scope="module")
def norms(vllm_backend: Any, family: Any) -> Any:
    """The norms of a process that has described a model."""
    vllm_backend("float32").describe(family("llama", "float32"), 0)
    from vllm import ir

    return ir.ops


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("features", FEATURES)
def test_kernels_give_the_norms_of_vllm_and_a_row_does_not_depend_on_the_others(norms: Any, features: int) -> None:
    from aegaeon_sidecar.backends.vllm.norm_kernels import PROVIDER

    x, residual, weight = random(70, features), random(70, features) * 3, random(features)
    kept = x.clone(), residual.clone()
    assert norms.rms_norm.dispatch(x, weight, EPSILON).provider == PROVIDER
    assert norms.fused_add_rms_norm.dispatch(x, residual, weight, EPSILON).provider == PROVIDER
    alone = norms.rms_norm(x, weight, EPSILON)
    added, total = norms.fused_add_rms_norm(x, residual, weight, EPSILON)
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(alone, norms.rms_norm.impls["native"].impl_fn(x, weight, EPSILON))
    torch.testing.assert_close(added, norms.rms_norm.impls["native"].impl_fn(total, weight, EPSILON))
    for rows in (1, 2, 3, 5, 16, 33):
        assert torch.equal(norms.rms_norm(x[:rows], weight, EPSILON), alone[:rows])
        assert torch.equal(norms.fused_add_rms_norm(x[-rows:], residual[-rows:], weight, EPSILON)[0], added[-rows:])


@pytest.mark.parametrize("features", FEATURES)
def test_a_row_of_a_wider_tensor_has_the_norm_that_it_has_among_others(norms: Any, features: int) -> None:
    x, residual = random(9, 3 * features)[:, :features], random(9, 2 * features)[:, features:]
    weight = random(features)
    alone, (added, total) = norms.rms_norm(x, weight, EPSILON), norms.fused_add_rms_norm(x, residual, weight, EPSILON)
    for row in range(len(x)):
        single = slice(row, row + 1)
        assert torch.equal(norms.rms_norm(x[single], weight, EPSILON), alone[single])
        row_added, row_total = norms.fused_add_rms_norm(x[single], residual[single], weight, EPSILON)
        assert torch.equal(row_added, added[single])
        assert torch.equal(row_total, total[single])


def test_a_weight_for_all_features_is_not_read_beyond_its_end(norms: Any) -> None:
    x, weight = random(3, 64), random(1)
    assert torch.equal(norms.rms_norm(x, weight, EPSILON), norms.rms_norm.impls["native"].impl_fn(x, weight, EPSILON))


@pytest.mark.parametrize(
    ("x", "weight", "size"),
    [
        (random(5, 100), random(100), None),
        (random(5, 4, 64), random(64), None),
        (random(5, 64), None, None),
        (random(5, 64), random(64), 32),
        (random(5, 64, dtype=torch.bfloat16), random(64, dtype=torch.bfloat16), None),
        (random(5, 64, dtype=torch.bfloat16), random(64), None),
    ],
    ids=("a width of no vectors", "heads", "no weight", "a part of the row", "bfloat16", "two dtypes"),
)
def test_norms_that_kernels_do_not_take_are_those_of_vllm(
    norms: Any, x: Tensor, weight: Tensor | None, size: int | None
) -> None:
    native = norms.rms_norm.impls["native"].impl_fn(x, weight, EPSILON, size)
    assert torch.equal(norms.rms_norm(x, weight, EPSILON, size), native)
    added = norms.fused_add_rms_norm(x, x, weight, EPSILON, size)
    assert torch.equal(added[0], norms.fused_add_rms_norm.impls["native"].impl_fn(x, x, weight, EPSILON, size)[0])


def test_a_model_is_computed_without_the_dispatcher_that_a_compiler_needs(family: Any, vllm_backend: Any) -> None:
    import vllm.ir.op

    backend = vllm_backend("float32")
    layout = backend.describe(family("llama", "float32"), 0)
    assert vllm.ir.op._ENABLE_TORCH_WRAP is False
    layers = layout.built.shell.layers.values()
    assert layers
    assert all(layer.use_direct_call for layer in layers)
