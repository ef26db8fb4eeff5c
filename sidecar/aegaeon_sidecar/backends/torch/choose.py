"""From logits to tokens, for a whole batch: one argmax when nothing else is asked for, vectorised filters otherwise.

Order: repetition penalty, frequency and presence penalty, logit bias, masked stop ids; argmax if greedy; else
temperature, top-k, top-p, min-p, draw. Ties at a filter's edge are kept. Every row is computed as if it were alone.
A row's largest logit is finite or the row is refused: argmax finds NaN first, and nothing above finite is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegaeon_sidecar.backends import NotFinite, Sampled
from aegaeon_sidecar.sampling import SamplerState

NEVER = float("-inf")
NO_TOKEN = -1  # where the logits are not finite


def choose(logits: Tensor, samplers: Seq[SamplerState]) -> list[Sampled | NotFinite]:
    """logits: float32 [len(samplers), vocab_size], one row per sampler. Reads the samplers, changes none."""
    if all(sampler.plain for sampler in samplers):
        return [sampled_from(token) for token in likeliest(logits).tolist()]
    tokens = _tokens(_reshaped(logits, samplers), samplers)
    return [_with_logprobs(row, token, sampler) for row, token, sampler in zip(logits, tokens, samplers, strict=True)]


def likeliest(logits: Tensor) -> Tensor:
    """int64 [rows]: the argmax of each row; NO_TOKEN where that logit, and so the row, is not finite."""
    if not len(logits):
        return logits.new_empty(0, dtype=torch.int64)
    tokens = logits.argmax(dim=-1)
    peaks = logits.gather(1, tokens[:, None])[:, 0]
    return torch.where(peaks.isfinite(), tokens, NO_TOKEN)


def sampled_from(token: int) -> Sampled | NotFinite:
    """Sampled, or NotFinite for NO_TOKEN: of a row that nothing but the model has shaped."""
    return NotFinite() if token == NO_TOKEN else Sampled(token)


def _tokens(logits: Tensor, samplers: Seq[SamplerState]) -> list[int]:
    tokens: list[int] = likeliest(logits).tolist()
    drawn = [i for i, sampler in enumerate(samplers) if not sampler.greedy and tokens[i] != NO_TOKEN]
    if drawn:
        for i, token in zip(drawn, _draw(logits[drawn], [samplers[i] for i in drawn]), strict=True):
            tokens[i] = token
    return tokens


def _with_logprobs(row: Tensor, token: int, sampler: SamplerState) -> Sampled | NotFinite:
    """Log probabilities of the raw distribution: `row` is what the model said, before anything was changed."""
    if token == NO_TOKEN:
        return NotFinite(asked=bool(row.amax().isfinite()))
    if sampler.logprobs is None:
        return Sampled(token)
    if not row.amax().isfinite():
        return NotFinite()  # a mask hid it from the choice, but not from the sum of all
    logprobs = row.log_softmax(dim=-1)
    values, ids = logprobs.topk(min(sampler.logprobs, len(row)))
    return Sampled(token, float(logprobs[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))


def _reshaped(logits: Tensor, samplers: Seq[SamplerState]) -> Tensor:
    """The logits after penalties, bias and masks; a copy only when something changes."""
    if not any(sampler.reshaped for sampler in samplers):
        return logits
    logits = logits.clone()
    for row, sampler in zip(logits, samplers, strict=True):
        if sampler.penalised:
            _penalise(row, sampler)
        ids, bias = sampler.bias
        if ids.size:
            inside = ids < len(row)
            row.index_add_(0, _on(row, ids[inside]), _on(row, bias[inside]))
        if sampler.stops_masked:
            row.index_fill_(0, _on(row, sampler.stop_ids[sampler.stop_ids < len(row)]), NEVER)
    return logits


def _penalise(row: Tensor, sampler: SamplerState) -> None:
    ids, counts = (_on(row, array) for array in sampler.seen())
    values = row[ids]
    if sampler.repetition != 1.0:
        values = torch.where(values > 0, values / sampler.repetition, values * sampler.repetition)
    row.index_copy_(0, ids, values - sampler.frequency * counts - sampler.presence * (counts > 0))


def _draw(logits: Tensor, samplers: Seq[SamplerState]) -> list[int]:
    """Inverse transform: the first token, by id, at which the cumulative probability exceeds the sampler's draw."""
    temperatures = torch.tensor([[sampler.temperature] for sampler in samplers], device=logits.device)
    draws = torch.tensor([[sampler.draw()] for sampler in samplers], dtype=torch.float64, device=logits.device)
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperatures  # the likeliest is at 0
    for row, sampler in zip(scaled, samplers, strict=True):
        _filter(row, sampler)
    cumulative = scaled.exp().cumsum(dim=-1, dtype=torch.float64)
    places = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)
    tokens: list[int] = places[:, 0].clamp(max=logits.shape[1] - 1).tolist()
    return tokens


def _filter(row: Tensor, sampler: SamplerState) -> None:
    """In place: what top-k, top-p or min-p drop becomes impossible."""
    threshold = float(np.log(sampler.min_p)) if sampler.min_p > 0.0 else NEVER
    if sampler.top_k or sampler.top_p < 1.0:
        threshold = max(threshold, _nucleus(row, sampler.top_k, sampler.top_p))
    if threshold > NEVER:
        row.masked_fill_(row < threshold, NEVER)


def _nucleus(row: Tensor, top_k: int, top_p: float) -> float:
    """The smallest of the `top_k` largest (0: all) entries that are needed to hold `top_p` of their mass."""
    ordered = _descending(row)[: top_k or None]
    if top_p >= 1.0:
        return float(ordered[-1])
    cumulative = ordered.exp().cumsum(dim=0, dtype=torch.float64)
    needed = int(torch.searchsorted(cumulative, top_p * cumulative[-1]))
    return float(ordered[min(needed, len(ordered) - 1)])


def _descending(row: Tensor) -> Tensor:
    """Sorted; on a CPU by numpy, whose vectorised sort of a large vocabulary takes a thirtieth of torch's time."""
    if row.is_cpu:
        return torch.from_numpy(np.sort(row.numpy())).flip(0)
    return row.sort(descending=True).values


def _on(row: Tensor, array: NDArray[np.int64] | NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(array).to(row.device)
