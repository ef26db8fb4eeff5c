"""A shell's pass over decodes of one shape, into buffers that never move: what a GPU captures in a graph.

Attention's metadata is built once, of sequences as long as the model allows, and its tensors are these buffers; where a
kernel plans its work by the lengths of a step, `prepare` has it planned anew. Rows without a sequence attend to one
token of a block that others have, whose result is not read, so that every row has finite numbers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.decodes import HEAD, LENGTH, ROWS
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.backends.vllm.shell import Shell
from aegaeon_sidecar.domain.errors import BackendError

_NOWHERE = -1  # the slot of a row whose keys and values are not kept, as vLLM has it


class FixedShell:
    """Implements FixedModel, for a shell whose KV cache has blocks."""

    def __init__(self, shell: Shell) -> None:
        if shell.blocks is None:
            raise BackendError("a model's KV cache has no blocks; bind them first")
        model = shell.config.model_config
        self._shell, self._blocks = shell, shell.blocks
        self._longest = int(model.max_model_len)
        self._vocab_size = int(model.get_vocab_size())
        device = self._blocks.device
        width = -(-self._longest // shell.block_tokens)
        self._tokens = torch.zeros(ROWS, dtype=torch.int32, device=device)
        self._positions, self._slots = torch.zeros(2, ROWS, dtype=torch.int64, device=device).unbind(0)
        self._ends = torch.full((ROWS,), self._longest, dtype=torch.int32, device=device)
        self._table = torch.zeros(ROWS, width, dtype=torch.int32, device=device)
        self._metadata = self._common(torch.arange(ROWS + 1, dtype=torch.int32))
        attention: dict[str, Any] = {}
        for names, builder in shell.groups:
            attention |= dict.fromkeys(names, builder.build_for_cudagraph_capture(self._metadata))
        self._context = surface.forward_context(shell.config, attention, dict.fromkeys(attention, self._slots))

    @property
    def block_tokens(self) -> int:
        """See FixedModel."""
        return self._shell.block_tokens

    @property
    def capacity(self) -> int:
        """See FixedModel."""
        return self._shell.capacity

    @property
    def vocab_size(self) -> int:
        """See FixedModel."""
        return self._vocab_size

    def prepare(self, inputs: Seq[StepInput]) -> None:
        """See FixedModel. Attention may read slots behind a sequence's end and weigh them with 0, so blocks that begin
        are made finite."""
        size, adapters = self._shell.block_tokens, self._shell.adapters
        if adapters is not None:
            adapters.select(inputs)
        for part in inputs:
            if part.position % size == 0:
                self._blocks[int(part.blocks[part.position // size])].zero_()
        if self._blocks.is_cuda:
            for _, builder in self._shell.groups:
                builder.build(0, self._metadata)  # into buffers of its own, which the captured pass reads

    def forward(self, tokens: Tensor, state: Tensor) -> Tensor:
        """See FixedModel. Every operation has one shape and reads nothing on the host."""
        lengths, size = state[:, LENGTH].long(), self._shell.block_tokens
        self._tokens.copy_(tokens)
        self._positions.copy_((lengths - 1).clamp(min=0))
        self._ends.copy_(lengths.clamp(min=1))
        self._table.copy_(state[:, HEAD:])
        block = self._table.gather(1, (self._positions // size)[:, None])[:, 0].long()
        self._slots.copy_(torch.where(lengths > 0, block * size + self._positions % size, _NOWHERE))
        hidden = surface.forward(self._shell.model, self._context, self._tokens, self._positions)
        logits: Tensor = self._shell.model.compute_logits(hidden)
        return logits.float()

    def _common(self, starts: Tensor) -> surface.CommonAttentionMetadata:
        return surface.CommonAttentionMetadata(
            query_start_loc=starts.to(self._ends.device),
            query_start_loc_cpu=starts,
            seq_lens=self._ends,
            num_reqs=ROWS,
            num_actual_tokens=ROWS,
            max_query_len=1,
            max_seq_len=self._longest,
            block_table_tensor=self._table,
            slot_mapping=self._slots,
            causal=True,
            positions=self._positions,
            is_prefilling=torch.zeros(ROWS, dtype=torch.bool),
            seq_lens_cpu_upper_bound=torch.full((ROWS,), self._longest, dtype=torch.int32),
        )
