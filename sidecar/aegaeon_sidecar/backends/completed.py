"""A step that waits for its logits before it chooses tokens: what every backend's prompts are, and a CPU's decodes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from aegaeon_proto.engine.sampling import PoolingParams
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.choose import choose
from aegaeon_sidecar.backends.logprobs import score
from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.sampling import Chosen, Masks, NotFinite, Pooled, Scored


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step whose tokens were known when it was launched. `over`: behind its kernels; None when they were waited for.

    A chunk of a prompt chooses no token, so on a GPU nothing else tells that its weights and blocks are still in use.
    It is the first rank's: whatever reads weights or writes blocks on another one is for a part of a sum made there.
    """

    sampled: list[Chosen]
    over: torch.cuda.Event | None

    def results(self) -> list[Chosen]:
        """See Launched."""
        if self.over is not None:
            self.over.synchronize()
        return self.sampled


def wanted_rows(inputs: Seq[StepInput]) -> list[int] | None:
    """The inputs of which something is wanted, behind their last token; None: the logits behind every token of the
    only input, whose prompt is scored. Raises BackendError when it is not alone."""
    if all(part.scored is None for part in inputs):
        return [i for i, part in enumerate(inputs) if part.sampler is not None or part.pooling is not None]
    if len(inputs) != 1 or len(inputs[0].scored or ()) > len(inputs[0].tokens):
        raise BackendError("a prompt whose tokens are scored is a step of its own")
    return None


def chosen_rows(logits: Tensor, inputs: Seq[StepInput], masks: Masks | None = None) -> list[Chosen]:
    """One entry for each input, as Launched.results. logits: float32 [rows of `wanted_rows`, outputs].

    `masks`: where samplers have guides.
    """
    if any(part.pooling is not None for part in inputs):
        return _pooled_rows(logits, inputs)
    samplers = [part.sampler for part in inputs if part.sampler is not None]
    if inputs and (scored := inputs[0].scored) is not None:
        prompt = score(logits[: len(scored)], scored, inputs[0].likeliest)
        return [Scored(prompt, choose(logits[-1:], samplers, masks)[0] if samplers else None)]
    chosen = iter(choose(logits, samplers, masks))
    return [None if part.sampler is None else next(chosen) for part in inputs]


def _pooled_rows(outputs: Tensor, inputs: Seq[StepInput]) -> list[Chosen]:
    """Raises BackendError where text is wanted beside it: one model does not do both."""
    rows = iter(outputs)
    pooled: list[Chosen] = []
    for part in inputs:
        if part.sampler is not None:
            raise BackendError("a step either samples or pools")
        pooled.append(None if part.pooling is None else _pooled(next(rows), part.pooling))
    return pooled


def _pooled(row: Tensor, pooling: PoolingParams) -> Pooled | NotFinite:
    values = row[list(pooling.logits_of)] if pooling.logits_of else row
    if not bool(values.isfinite().all()):
        return NotFinite()
    return Pooled(values.cpu().numpy().copy())
