"""A shell's pass over decodes of one shape, into buffers that never move: what a GPU captures in a graph.

Attention's metadata is built once for each size of context, and its tensors are these buffers; where a kernel plans its
work by the lengths of a step, `prepare` has it planned anew. Rows without a sequence attend to one token of a block
that others have, whose result is not read, so that every row has finite numbers.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.decodes import ROWS, context_size
from aegaeon_sidecar.backends.staging import HEAD, LENGTH
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.backends.vllm.shell import Shell
from aegaeon_sidecar.domain.errors import BackendError

_NOWHERE = -1  # the slot of a row whose keys and values are not kept, as vLLM has it
# One number: whether rows of fewer are the same bits differs from GPU to GPU, and a trial would need KV to attend to.
_ROWS = ROWS[-1]


@dataclass(frozen=True, slots=True)
class _Sized:
    """`metadata`: of sequences as long as a size of context, with block tables of `table`; `context`: what the
    builders made of it."""

    table: Tensor
    metadata: surface.CommonAttentionMetadata
    context: Any


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
        self._tokens = torch.zeros(_ROWS, dtype=torch.int32, device=device)
        self._positions, self._slots = torch.zeros(2, _ROWS, dtype=torch.int64, device=device).unbind(0)
        self._ends = torch.zeros(_ROWS, dtype=torch.int32, device=device)
        self._sizes: dict[int, _Sized] = {}

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

    @property
    def rows(self) -> tuple[int, ...]:
        """See FixedModel."""
        return (_ROWS,)

    def size(self, longest: int) -> int:
        """See FixedModel."""
        return context_size(longest, self._longest)

    def prepare(self, inputs: Seq[StepInput], size: int) -> None:
        """See FixedModel. Attention may read slots behind a sequence's end and weigh them with 0, so blocks that begin
        are made finite."""
        tokens, adapters = self._shell.block_tokens, self._shell.adapters
        if adapters is not None:
            adapters.select(inputs)
        for part in inputs:
            if part.position % tokens == 0:
                self._blocks[int(part.blocks[part.position // tokens])].zero_()
        sized = self._sized(size)
        if self._blocks.is_cuda:
            for _, builder in self._shell.groups:
                builder.build(0, sized.metadata)  # into buffers of its own, which the captured pass reads

    def forward(self, tokens: Tensor, state: Tensor, size: int) -> Tensor:
        """See FixedModel. Every operation has one shape and reads nothing on the host."""
        lengths, sized, block_tokens = state[:, LENGTH].long(), self._sizes[size], self._shell.block_tokens
        self._tokens.copy_(tokens)
        self._positions.copy_((lengths - 1).clamp(min=0))
        self._ends.copy_(lengths.clamp(min=1))
        sized.table.copy_(state[:, HEAD:])
        block = sized.table.gather(1, (self._positions // block_tokens)[:, None])[:, 0].long()
        self._slots.copy_(torch.where(lengths > 0, block * block_tokens + self._positions % block_tokens, _NOWHERE))
        hidden = surface.forward(self._shell.model, sized.context, self._tokens, self._positions)
        logits: Tensor = self._shell.model.compute_logits(hidden)
        return logits.float()

    def _sized(self, size: int) -> _Sized:
        if size not in self._sizes:
            width = -(-size // self._shell.block_tokens)
            table = torch.zeros(_ROWS, width, dtype=torch.int32, device=self._blocks.device)
            self._ends.fill_(size)  # a kernel may plan by it; a pass writes the true lengths
            metadata = self._common(table, size)
            attention: dict[str, Any] = {}
            for names, builder in self._shell.groups:
                attention |= dict.fromkeys(names, builder.build_for_cudagraph_capture(metadata))
            context = surface.forward_context(self._shell.config, attention, dict.fromkeys(attention, self._slots))
            self._sizes[size] = _Sized(table, metadata, context)
        return self._sizes[size]

    def _common(self, table: Tensor, size: int) -> surface.CommonAttentionMetadata:
        starts = torch.arange(_ROWS + 1, dtype=torch.int32)
        return surface.CommonAttentionMetadata(
            query_start_loc=starts.to(self._ends.device),
            query_start_loc_cpu=starts,
            seq_lens=self._ends,
            num_reqs=_ROWS,
            num_actual_tokens=_ROWS,
            max_query_len=1,
            max_seq_len=size,
            block_table_tensor=table,
            slot_mapping=self._slots,
            causal=True,
            positions=self._positions,
            is_prefilling=torch.zeros(_ROWS, dtype=torch.bool),
            seq_lens_cpu_upper_bound=torch.full((_ROWS,), size, dtype=torch.int32),
        )
