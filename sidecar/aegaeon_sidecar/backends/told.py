"""A step that waits for its logits before it chooses tokens: what every backend's prompts are, and a CPU's decodes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.choose import choose
from aegaeon_sidecar.sampling import Chosen, Masks


@dataclass(frozen=True, slots=True)
class Told:
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


def sampling_rows(inputs: Seq[StepInput]) -> list[int]:
    """The inputs of which a token is to be sampled."""
    return [i for i, part in enumerate(inputs) if part.sampler is not None]


def chosen_rows(logits: Tensor, inputs: Seq[StepInput], wanted: Seq[int], masks: Masks | None = None) -> list[Chosen]:
    """One entry for each input, as Launched.results. logits: float32 [len(wanted), vocab_size], one row for each of
    `wanted`; `masks`: where samplers have guides."""
    results: list[Chosen] = [None] * len(inputs)
    chosen = choose(logits, [part.sampler for part in inputs if part.sampler is not None], masks)
    for i, sampled in zip(wanted, chosen, strict=True):
        results[i] = sampled
    return results
