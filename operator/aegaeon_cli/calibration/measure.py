"""Prefills and decode steps, timed on this machine through the same backend that serves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aegaeon_cli.calibration.timing import median_seconds

if TYPE_CHECKING:
    from aegaeon_sidecar.backends import StepInput
    from aegaeon_sidecar.backends.torch import TorchBackend
    from aegaeon_sidecar.models.placement import Layout

_TOKEN = 5  # any id that every vocabulary has; arithmetic takes as long for all


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured: prompt lengths, and contexts (tokens of each sequence) by batch. Medians of `rounds`."""

    prompts: tuple[int, ...] = (16, 64, 128, 256, 512)
    contexts: tuple[int, ...] = (16, 128, 384)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    rounds: int = 5


@dataclass(slots=True)
class Measured:
    """Seconds: of a prompt of so many tokens; of a step with so much context altogether in so large a batch."""

    layout: Layout
    prefill: list[tuple[int, float]] = field(default_factory=list)
    step: list[tuple[int, int, float]] = field(default_factory=list)


def measure(directory: Path, dtype: str, max_model_len: int, grid: Grid, task: str = "") -> Measured:
    """Time one model over the grid, as far as its length goes. Raises the sidecar's ModelError for a bad directory.

    `task`: what it is for; "": what its files show. Of one that generates nothing a step is a prompt's next token.
    """
    from aegaeon_sidecar.backends.torch import TorchBackend

    backend = TorchBackend(dtype=dtype)
    layout = backend.describe(directory, max_model_len, task)
    bench = _Bench(backend, layout, directory, _blocks_needed(layout, grid))
    measured = Measured(layout)
    for tokens in _within(grid.prompts, layout.max_model_len):
        measured.prefill.append((tokens, bench.seconds(1, tokens, 0, grid.rounds)))
    for context in _within(grid.contexts, layout.max_model_len - 1):
        for batch in grid.batches:
            measured.step.append((context * batch, batch, bench.seconds(batch, 1, context, grid.rounds)))
    return measured


class _Bench:
    """One registered model with its weights and a KV cache of its own."""

    def __init__(self, backend: TorchBackend, layout: Layout, directory: Path, blocks: int) -> None:
        from aegaeon_sidecar.models.weight_files import look
        from aegaeon_sidecar.weights.fill import fill
        from aegaeon_sidecar.weights.ring import StageRing

        self._backend = backend
        self._block_tokens = layout.kv_block_tokens
        self._pools = layout.pools
        self._weights = np.zeros(layout.weight_bytes, np.uint8)
        fill(look(directory, layout), [self._weights], StageRing(), hashed=False)
        backend.register("model", directory, layout, self._weights)
        self._kv = np.zeros(blocks * layout.kv_block_bytes, np.uint8)
        backend.bind_kv(layout.kv_shape, self._kv)

    def seconds(self, batch: int, tokens: int, position: int, rounds: int) -> float:
        """Median of `rounds` steps of `batch` sequences, each with `tokens` to compute after `position`."""
        inputs = list(self._inputs(batch, tokens, position))
        return median_seconds(lambda: self._backend.step("model", inputs), rounds)

    def _inputs(self, batch: int, tokens: int, position: int) -> Iterator[StepInput]:
        from aegaeon_sidecar.backends import StepInput
        from aegaeon_sidecar.domain.sequences import PoolingParams
        from aegaeon_sidecar.sampling import SamplerState

        each = -(-(position + tokens) // self._block_tokens)
        for index in range(batch):
            blocks = np.arange(index * each, (index + 1) * each, dtype=np.int32)
            sampler, pooling = (None, PoolingParams()) if self._pools else (SamplerState(), None)
            yield StepInput([_TOKEN] * tokens, position, blocks, sampler, pooling=pooling)


def _blocks_needed(layout: Layout, grid: Grid) -> int:
    longest = max(*grid.prompts, (max(grid.contexts) + 1) * max(grid.batches))
    return -(-longest // layout.kv_block_tokens) + max(grid.batches)


def _within(lengths: tuple[int, ...], limit: int) -> list[int]:
    """Those that the model can hold; its limit itself when it is shorter than all."""
    return [length for length in lengths if length <= limit] or [limit]
