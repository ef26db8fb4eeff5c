"""The choice of tokens from logits, for an entire batch: penalties, bias and masks before the draw of draws.py,
logprobs after it.

Order: repetition penalty, frequency and presence penalty, logit bias, masked tokens, constraint; argmax if greedy;
else temperature, top-k, top-p, min-p, draw. Ties at a filter's edge are kept. Every row is computed as if alone.
A row's largest logit is finite or the row is refused: argmax finds NaN first, and nothing above finite is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegaeon_sidecar.backends.draws import NEVER, NO_TOKEN, likeliest_list, numbers, pick
from aegaeon_sidecar.backends.logprobs import with_logprobs
from aegaeon_sidecar.sampling import Masks, NotFinite, Picked, Sampled, SamplerState

_NONE = np.empty(0, dtype=np.int64)


def choose(logits: Tensor, samplers: Seq[SamplerState], masks: Masks | None = None) -> list[Picked]:
    """logits: float32 [len(samplers), vocab_size], one row per sampler. Reads the samplers, changes none.

    `masks`: where samplers have guides.
    """
    if all(sampler.plain for sampler in samplers):
        return greedy(logits)
    tokens = _tokens(masked(_reshaped(logits, samplers), masks), samplers)
    return refused(with_logprobs(logits, tokens, [sampler.params.logprobs for sampler in samplers]), masks)


def greedy(logits: Tensor) -> list[Picked]:
    """`choose` for samplers that are all plain."""
    return [sampled_from(token) for token in likeliest_list(logits)]


def masked(logits: Tensor, masks: Masks | None) -> Tensor:
    """The logits without what constraints do not allow; no host round trip."""
    if masks is None:
        return logits
    if masks.ceilings is not None:
        return torch.minimum(logits, torch.from_numpy(masks.ceilings))
    allowed = torch.from_numpy(masks.allowed)
    if logits.is_cuda:
        allowed = allowed.pin_memory().to(logits.device, non_blocking=True)
    return logits.masked_fill(~allowed, NEVER)


def refused(chosen: Seq[Picked], masks: Masks | None) -> list[Picked]:
    """The choices, with those of rows whose constraint cannot be followed replaced."""
    return [masks.refused.get(row, pick) if masks else pick for row, pick in enumerate(chosen)]


def sampled_from(token: int) -> Sampled | NotFinite:
    """Sampled, or NotFinite for NO_TOKEN: of a row that nothing but the model has shaped."""
    return NotFinite() if token == NO_TOKEN else Sampled(token)


def _tokens(logits: Tensor, samplers: Seq[SamplerState]) -> Tensor:
    """int64 [rows], on the logits' device. A GPU chooses for all rows at once, and nothing of it is waited for."""
    if logits.is_cuda:
        return pick(logits, _rules(logits, samplers))
    tokens = likeliest_list(logits)
    drawn = [i for i, sampler in enumerate(samplers) if not sampler.greedy and tokens[i] != NO_TOKEN]
    if drawn:
        drawing = [samplers[i] for i in drawn]
        filtered = any(sampler.params.top_k or sampler.params.top_p < 1.0 for sampler in drawing)
        picked: list[int] = pick(logits[drawn], _rules(logits, drawing), filtered).tolist()
        for i, token in zip(drawn, picked, strict=True):
            tokens[i] = token
    return torch.tensor(tokens)


def _rules(logits: Tensor, samplers: Seq[SamplerState]) -> Tensor:
    rules = torch.from_numpy(numbers(samplers, [0] * len(samplers)))
    return rules.pin_memory().to(logits.device, non_blocking=True) if logits.is_cuda else rules


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
        _mask(row, sampler)
    return logits


def _mask(row: Tensor, sampler: SamplerState) -> None:
    """Mask the tokens that may not be chosen. Ids outside of the vocabulary are ignored."""
    if (forced := sampler.forced) is not None and forced < len(row):
        row.fill_(NEVER)[forced] = 0.0
        return
    if sampler.allowed.size:
        allowed = _on(row, sampler.allowed[sampler.allowed < len(row)])
        kept = row[allowed]
        row.fill_(NEVER).index_copy_(0, allowed, kept)
    for masked in (sampler.completes_bad_word(), sampler.stop_ids if sampler.stops_masked else _NONE):
        if masked.size:
            row.index_fill_(0, _on(row, masked[masked < len(row)]), NEVER)


def _penalise(row: Tensor, sampler: SamplerState) -> None:
    ids, counts = (_on(row, array) for array in sampler.seen())
    params, values = sampler.params, row[ids]
    if params.repetition_penalty != 1.0:
        values = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    row.index_copy_(0, ids, values - params.frequency_penalty * counts - params.presence_penalty * (counts > 0))


def _on(row: Tensor, array: NDArray[np.int64] | NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(array).to(row.device)
