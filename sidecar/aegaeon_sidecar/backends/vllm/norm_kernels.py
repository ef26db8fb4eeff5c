"""RMS norms of float32 by vLLM's kernels for CPUs, where vLLM itself composes each of ten of torch's operators.

vLLM calls these kernels on GPUs alone. Here a norm of a few rows takes 7 us rather than 45, and a decode step of eight
layers has 17 of them; a row's result does not depend on the others.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm import ir
from vllm.ir.op import set_default_torch_wrap

PROVIDER = "cpu_kernels"
_MULTIPLE = 64  # of a row's features: kernels read whole vectors


def use_norm_kernels() -> None:
    """Prefer the kernels wherever they take a norm's arguments, and call norms without torch's dispatcher.

    Once in a process, before the first model.
    """
    built = hasattr(torch.ops._C, "rms_norm")
    ir.ops.rms_norm.register_impl(PROVIDER, supported=built, supports_args=_is_usual)(_rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supported=built, supports_args=_is_usual_sum)(_fused_add_rms_norm)
    for norm in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
        norm.set_default([PROVIDER, "native"])
    set_default_torch_wrap(enable=False)


def _is_usual(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    """Return whether the kernel computes this norm: float32 [rows, features], with a weight for each feature.

    How rows lie in memory does not count: torch calls a single row of a wider tensor contiguous and several not, and
    a row's norm would depend on how many there are.
    """
    if weight is None or variance_size is not None or x.dim() != 2 or x.shape[1] % _MULTIPLE:
        return False
    return x.dtype is weight.dtype is torch.float32 and weight.shape == x.shape[1:] and weight.is_contiguous()


def _is_usual_sum(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return x_residual.dtype is torch.float32 and _is_usual(x, weight, epsilon, variance_size)


def _rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    torch.ops._C.rms_norm(out, x.contiguous(), weight, epsilon)
    return out


def _fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    total = x + x_residual
    return _rms_norm(total, weight, epsilon), total
