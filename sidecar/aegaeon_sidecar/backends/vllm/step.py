"""A forward pass: our sequences and block tables as vLLM's attention metadata, its model's logits back."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from aegaeon_proto.pooling import Task
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.backends.vllm.batch import Batch
from aegaeon_sidecar.backends.vllm.shell import Shell
from aegaeon_sidecar.domain.errors import BackendError


def forward(shell: Shell, inputs: Seq[StepInput], wanted: Seq[int] | None) -> Tensor:
    """float32 [len(wanted), outputs]: what the model gives after the last token of each input of `wanted`; None: after
    every token of all inputs."""
    torch.get_num_threads()  # OpenMP's number is a thread's own; torch gives it this thread's when it is first asked
    if shell.blocks is None:
        raise BackendError("a model's KV cache has no blocks; bind them first")
    batch = _batch(shell, shell.blocks, inputs)
    if shell.adapters is not None:
        shell.adapters.select(inputs)
    attention: dict[str, Any] = {}
    for names, builder in shell.groups:
        attention |= dict.fromkeys(names, builder.build(0, batch.metadata))
    slots = dict.fromkeys(attention, batch.slots)
    with surface.forward_context(shell.config, attention, slots):
        hidden = shell.model(
            input_ids=batch.tokens, positions=batch.positions, intermediate_tensors=None, inputs_embeds=None
        )
        rows = batch.last_rows(wanted)
        return _output(shell, hidden if rows is None else hidden[rows]).float()


def _batch(shell: Shell, blocks: Tensor, inputs: Seq[StepInput]) -> Batch:
    """Where the sequences of the last step decode one token more, that step's, which has moved on.

    Attention may read slots behind a sequence's end and weigh them with 0: blocks that begin are made finite.
    """
    if shell.batch is not None and shell.batch.advance(inputs):
        return shell.batch
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
