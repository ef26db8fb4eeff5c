"""Rotary position embedding: frequencies of every supported scaling, and the rotation itself.

No table over positions: cos and sin of a step's positions are computed once per step, for any length of context.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aegaeon_sidecar.models.rope import Linear, Llama3, Rope, Yarn


class Rotary:
    """The rotation of a model's queries and keys."""

    def __init__(self, rope: Rope, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._frequencies = frequencies(rope, head_dim).to(device)
        self._scale = rope.scaling.attention_factor if isinstance(rope.scaling, Yarn) else 1.0
        self._dtype = dtype

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [n] -> cos, sin [n, 1, head_dim]; the first half of sin is negated, as `rotate` wants it."""
        half = positions[:, None].float() * self._frequencies
        cos, sin = half.cos() * self._scale, half.sin() * self._scale
        both = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return both[0].to(self._dtype)[:, None], both[1].to(self._dtype)[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, head_dim]; pairs are (i, i + head_dim / 2), as transformers stores these models."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return torch.addcmul(x * cos, swapped, sin)


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians per token of each pair, float32 [head_dim / 2]."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    scaling = rope.scaling
    if isinstance(scaling, Linear):
        return plain / scaling.factor
    if isinstance(scaling, Llama3):
        return _llama3(plain, scaling)
    if isinstance(scaling, Yarn):
        return _yarn(plain, scaling, rope.theta, head_dim)
    return plain


def _llama3(plain: Tensor, scaling: Llama3) -> Tensor:
    turns = scaling.original_tokens * plain / (2 * math.pi)  # full turns over the original context
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = ramp.clamp(0.0, 1.0)
    return (1 - kept) * plain / scaling.factor + kept * plain


def _yarn(plain: Tensor, scaling: Yarn, theta: float, head_dim: int) -> Tensor:
    def dimension(turns: float) -> float:
        """The pair that makes so many full turns over the original context (YaRN section 3.2)."""
        return head_dim * math.log(scaling.original_tokens / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = max(high - low, 0.001)
    interpolated = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / span).clamp(0.0, 1.0)
    return plain / scaling.factor * interpolated + plain * (1 - interpolated)
