"""A forward pass: our sequences and block tables as vLLM's attention metadata, its model's logits back."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegaeon_proto.pooling import Task
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.backends.vllm.shell import Shell
from aegaeon_sidecar.domain.errors import BackendError


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences one behind the other. `starts`: of each in `tokens`, and the end; `ends`: tokens of each afterwards."""

    tokens: NDArray[np.int32]
    positions: NDArray[np.int64]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    table: NDArray[np.int32]
    slots: NDArray[np.int64]

    @staticmethod
    def of(inputs: Seq[StepInput], block_tokens: int) -> Batch:
        """Raises BackendError when a block table is too short."""
        lengths = np.array([len(part.tokens) for part in inputs], dtype=np.int32)
        begins = np.array([part.position for part in inputs], dtype=np.int32)
        if (lengths == 1).all():
            return Batch._of_decodes(inputs, begins, block_tokens)
        starts = np.zeros(len(inputs) + 1, dtype=np.int32)
        np.cumsum(lengths, out=starts[1:])
        positions = np.arange(starts[-1], dtype=np.int64) + np.repeat(begins - starts[:-1], lengths)
        table = _table(inputs, begins + lengths, block_tokens)
        rows = np.repeat(np.arange(len(inputs)), lengths)
        slots = table[rows, positions // block_tokens].astype(np.int64) * block_tokens + positions % block_tokens
        tokens = np.concatenate([np.asarray(part.tokens, dtype=np.int32) for part in inputs])
        return Batch(tokens, positions, starts, begins + lengths, table, slots)

    @staticmethod
    def _of_decodes(inputs: Seq[StepInput], begins: NDArray[np.int32], block_tokens: int) -> Batch:
        """One token each: nothing to repeat."""
        rows = np.arange(len(inputs) + 1, dtype=np.int32)
        table = _table(inputs, begins + 1, block_tokens)
        blocks = table[rows[:-1], begins // block_tokens].astype(np.int64)
        tokens = np.array([part.tokens[0] for part in inputs], dtype=np.int32)
        slots = blocks * block_tokens + begins % block_tokens
        return Batch(tokens, begins.astype(np.int64), rows, begins + 1, table, slots)

    def metadata(self) -> surface.CommonAttentionMetadata:
        """As vLLM's builders take it."""
        starts, ends = torch.from_numpy(self.starts), torch.from_numpy(self.ends)
        lengths = np.diff(self.starts)
        return surface.CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=ends,
            num_reqs=len(self.ends),
            num_actual_tokens=len(self.tokens),
            max_query_len=int(lengths.max()),
            max_seq_len=int(self.ends.max()),
            block_table_tensor=torch.from_numpy(self.table),
            slot_mapping=torch.from_numpy(self.slots),
            causal=True,
            positions=torch.from_numpy(self.positions),
            is_prefilling=torch.from_numpy(lengths > 1),
            seq_lens_cpu_upper_bound=ends,
        )


def _table(inputs: Seq[StepInput], ends: NDArray[np.int32], block_tokens: int) -> NDArray[np.int32]:
    """Rows are padded with a block of the batch: block 0 need not be mapped."""
    counts = -(-ends // block_tokens)
    table = np.full((len(inputs), int(counts.max())), inputs[0].blocks[0], dtype=np.int32)
    for row, part, count in zip(table, inputs, counts, strict=True):
        if len(part.blocks) < count:
            raise BackendError(f"a block table has {len(part.blocks)} blocks, {count} are needed")
        row[:count] = part.blocks[:count]
    return table


def forward(shell: Shell, inputs: Seq[StepInput], wanted: Seq[int] | None) -> Tensor:
    """float32 [len(wanted), outputs]: what the model gives after the last token of each input of `wanted`; None: after
    every token of all inputs."""
    torch.get_num_threads()  # OpenMP's number is a thread's own; torch gives it this thread's when it is first asked
    batch = Batch.of(inputs, shell.block_tokens)
    _zero_new_blocks(shell, inputs)
    common = batch.metadata()
    attention: dict[str, Any] = {}
    for names, builder in shell.groups:
        attention |= dict.fromkeys(names, builder.build(0, common))
    slots = dict.fromkeys(attention, torch.from_numpy(batch.slots))
    with surface.forward_context(shell.config, attention, slots, len(batch.tokens)):
        hidden = shell.model(
            input_ids=torch.from_numpy(batch.tokens),
            positions=common.positions,
            intermediate_tensors=None,
            inputs_embeds=None,
        )
        if wanted is not None:
            hidden = hidden[torch.from_numpy(batch.starts[1:].astype(np.int64) - 1)[list(wanted)]]
        return _output(shell, hidden).float()


def _output(shell: Shell, hidden: Tensor) -> Tensor:
    """Logits, or what the model's purpose asks for: the hidden state, a classifier's logit."""
    if shell.purpose.task is Task.EMBED:
        return hidden
    model = shell.model
    outputs: Tensor = (
        model.score(hidden.to(model.score.weight.dtype)) if shell.purpose.classifies else model.compute_logits(hidden)
    )
    return outputs


def _zero_new_blocks(shell: Shell, inputs: Seq[StepInput]) -> None:
    """Attention may read slots behind a sequence's end and weigh them with 0: they have to be finite."""
    if shell.blocks is None:
        raise BackendError("a model's KV cache has no blocks; bind them first")
    for part in inputs:
        end = part.position + len(part.tokens)
        last = (end - 1) // shell.block_tokens
        if end % shell.block_tokens and last * shell.block_tokens >= part.position:
            shell.blocks[int(part.blocks[last])].zero_()
