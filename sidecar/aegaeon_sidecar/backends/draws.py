"""The sampler: greedy and filtered draws for a whole batch, on the device of its logits and without leaving it.

A draw needs only (seed, choice, index), so the numbers of a step are known before its logits are: they travel with its
inputs. What depends on the tokens so far (penalties) or reports more than the token (logprobs) is left to `choose`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import aegaeon_native as native
from aegaeon_sidecar.sampling import SamplerState
from aegaeon_sidecar.sampling.state import uniform

NEVER = float("-inf")
_LOWEST, _TINY = -80.0, 1e-34  # of scaled logits, and of the weights that are not 0: exp(-80) is 2e-35
NO_TOKEN = native.NO_TOKEN  # where the logits are not finite
FOLLOWED = 1024  # sequences of a step whose tokens the next one may take from the device, at most
COLUMNS = 5  # temperature (0: greedy), top_k, top_p, min_p, draw


def on_device(sampler: SamplerState) -> bool:
    """True when `pick` can choose the next token and the one after it."""
    return sampler.params.logprobs is None and not sampler.reshaped


def numbers(samplers: Seq[SamplerState | None], ahead: Seq[int]) -> NDArray[np.float64]:
    """float64 [rows, COLUMNS] for `pick`; `ahead`: tokens of each that are chosen but not yet accepted."""
    rows = np.zeros((len(samplers), COLUMNS))
    for row, sampler, more in zip(rows, samplers, ahead, strict=True):
        if sampler is not None and not sampler.greedy:
            params = sampler.params
            draw = uniform(params.seed, sampler.choice, sampler.generated + more)
            row[:] = params.temperature, params.top_k, params.top_p, params.min_p, draw
    return rows


def likeliest(logits: Tensor) -> Tensor:
    """int64 [rows]: the argmax of each row; NO_TOKEN where that logit, and so the row, is not finite."""
    if not len(logits):
        return logits.new_empty(0, dtype=torch.int64)
    if logits.is_cpu:
        return torch.tensor(likeliest_list(logits))
    tokens = logits.argmax(dim=-1)
    peaks = logits.gather(1, tokens[:, None])[:, 0]
    return torch.where(peaks.isfinite(), tokens, NO_TOKEN)


def likeliest_list(logits: Tensor) -> list[int]:
    """`likeliest`, on the host. On a CPU in one call: after a forward pass no code is in the caches, and every further
    operation costs more than its work."""
    if not logits.is_cpu:
        tokens: list[int] = likeliest(logits).tolist()
        return tokens
    rows, columns = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    return native.likeliest(logits.data_ptr(), rows, columns, logits.stride(0))


def pick(logits: Tensor, rules: Tensor, filtered: bool = True, best: Tensor | None = None) -> Tensor:
    """logits float32 [rows, vocab_size], rules float64 [rows, COLUMNS] -> tokens int64 [rows], NO_TOKEN where a row is
    not finite. Inverse transform: the first token, by id, at which the cumulative probability exceeds the row's draw.
    No host round trip. `filtered` False: the caller knows that no row has a top_k or top_p, and nothing is sorted.
    `best`: what `likeliest` says, where that is known."""
    best = likeliest(logits) if best is None else best
    if logits.is_cuda:
        from aegaeon_sidecar.backends import fused_draws  # needs Triton

        return fused_draws.draw(logits, rules, best)
    temperature, top_k, top_p, min_p, draw = rules.unbind(dim=1)
    greedy = temperature == 0
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / torch.where(greedy, 1.0, temperature).float()[:, None]
    floor = torch.where(min_p > 0, min_p.log(), NEVER).float()
    if filtered:
        floor = torch.maximum(floor, _nucleus(scaled, top_k, top_p))
    kept = scaled.masked_fill(scaled < floor[:, None], NEVER)
    cumulative = _weights(kept).cumsum(dim=-1, dtype=torch.float64)
    places = torch.searchsorted(cumulative, (draw[:, None] * cumulative[:, -1:]).contiguous(), right=True)[:, 0]
    return torch.where(greedy | (best == NO_TOKEN), best, places.clamp(max=logits.shape[1] - 1))


def _weights(scaled: Tensor) -> Tensor:
    """The exponentials, 0 where they are below _TINY. MKL takes 25 times as long for an infinity, which is what
    constraints make of most logits."""
    return torch.threshold_(scaled.clamp(min=_LOWEST).exp_(), _TINY, 0.0)


def _nucleus(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The smallest of the `top_k` largest (0: all) entries of each row needed to hold `top_p` of their mass."""
    ordered = _descending(scaled)
    size = scaled.shape[1]
    kept = torch.where((top_k > 0) & (top_k < size), top_k, size).long()
    inside = torch.arange(size, device=scaled.device)[None, :] < kept[:, None]
    cumulative = (_weights(ordered) * inside).cumsum(dim=-1, dtype=torch.float64)
    needed = torch.searchsorted(cumulative, (top_p[:, None] * cumulative[:, -1:]).contiguous())[:, 0]
    last = torch.where(top_p < 1, torch.minimum(needed, kept - 1), kept - 1)
    least = ordered.gather(1, last[:, None])[:, 0]
    return torch.where((top_k > 0) | (top_p < 1), least, NEVER)


def _descending(rows: Tensor) -> Tensor:
    """Each row sorted; on a CPU by numpy, whose vectorised sort of a large vocabulary takes a thirtieth of torch's."""
    if rows.is_cpu:
        return torch.from_numpy(np.sort(rows.numpy(), axis=1)).flip(1)
    return rows.sort(dim=-1, descending=True).values
