"""A forward pass: our sequences and block tables as vLLM's attention metadata, its model's logits back."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from aegaeon_proto.pooling import Task
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.backends.vllm.batch import AHEAD, Batch
from aegaeon_sidecar.backends.vllm.shell import Shell
from aegaeon_sidecar.domain.errors import BackendError


def in_parts(shell: Shell, inputs: Seq[StepInput], selected: Seq[int] | None) -> Tensor:
    """Compute in one pass, or in as many as the inputs' adapters need. Rows are those of a single pass."""
    if shell.adapters is None and any(part.adapter is not None for part in inputs):
        raise BackendError("an adapter of a model that has none; describe it first")
    parts = [list(range(len(inputs)))] if shell.adapters is None else shell.adapters.parts(inputs)
    if len(parts) == 1 or selected is None:
        return forward(shell, inputs, selected)
    rows: dict[int, Tensor] = {}
    for numbers in parts:
        positions = [at for at, number in enumerate(numbers) if number in selected]
        logits = forward(shell, [inputs[number] for number in numbers], positions)
        rows |= zip((numbers[at] for at in positions), logits, strict=True)
    return torch.stack([rows[number] for number in selected])


def forward(shell: Shell, inputs: Seq[StepInput], selected: Seq[int] | None) -> Tensor:
    """float32 [len(selected), outputs]: the output after the last token of each input of `selected`; None: after
    every token of all inputs."""
    torch.get_num_threads()  # OpenMP's number is a thread's own; torch gives it this thread's when it is first asked
    if shell.blocks is None:
        raise BackendError("a model's KV cache has no blocks; bind them first")
    batch = next_batch(shell, shell.blocks, inputs)
    if shell.adapters is not None:
        shell.adapters.select(inputs)
    return run(shell, batch, batch.last_rows(selected))


def run(shell: Shell, batch: Batch, rows: Tensor | None) -> Tensor:
    """The step of this batch, with the adapters selected before. `rows`: those of its tokens that are wanted."""
    return _output(shell, states(shell, batch, rows)).float()


def states(shell: Shell, batch: Batch, rows: Tensor | None) -> Tensor:
    """The hidden states of this step, before the head."""
    if batch.left <= 0:
        ahead = AHEAD if shell.keeps_metadata else 0
        batch.keep(_context(shell, batch, ahead), ahead)
    hidden = surface.forward(shell.model, batch.context, batch.tokens, batch.positions)
    return hidden if rows is None else hidden[rows]


def _context(shell: Shell, batch: Batch, ahead: int) -> Any:
    attention: dict[str, Any] = {}
    with batch.ahead(ahead) as metadata:
        for names, builder in shell.groups:
            attention |= dict.fromkeys(names, builder.build(0, metadata))
    return surface.forward_context(shell.config, attention, dict.fromkeys(attention, batch.slots))


def next_batch(shell: Shell, blocks: Tensor, inputs: Seq[StepInput]) -> Batch:
    """The batch of this step; when the sequences of the last step decode one token more, it is that step's batch,
    advanced.

    Attention may read slots behind a sequence's end and weigh them with 0: blocks that begin are made finite.
    """
    if shell.batch is None or not shell.batch.advance(inputs):
        shell.batch = Batch.of(inputs, shell.block_tokens)
    for part in inputs:
        end = part.position + len(part.tokens)
        last = (end - 1) // shell.block_tokens
        if end % shell.block_tokens and last * shell.block_tokens >= part.position:
            blocks[int(part.blocks[last])].zero_()
    return shell.batch


def _output(shell: Shell, hidden: Tensor) -> Tensor:
    """Logits, or what the model's purpose asks for: the hidden state, a classifier's logit."""
    if shell.purpose.task is Task.EMBED:
        return hidden
    model = shell.model
    outputs: Tensor = (
        model.score(hidden.to(model.score.weight.dtype)) if shell.purpose.classifies else model.compute_logits(hidden)
    )
    return outputs
