"""Attention over KV blocks: the seam between the decoder's layers and how keys and values are written and read.

`Gathered` copies the blocks of a step side by side and calls the library: any device, any mix of chunks. For decodes on
a GPU there is `paged`, which reads the blocks where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.step_layout import Chunk, Decodes, Piece, StepLayout, Window


class Attention(Protocol):
    """One step's attention, called once by each layer in turn."""

    def attend(self, layer: int, window: Window, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write keys, values [tokens, kv_heads, head_dim]; return [tokens, heads * head_dim] for these queries."""
        ...


@dataclass(frozen=True, slots=True)
class Gathered:
    """The step of `layout`, over the blocks of `cache`."""

    layout: StepLayout
    cache: KvCache

    def attend(self, layer: int, window: Window, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See Attention."""
        tokens = self.cache.tokens
        tokens.index_copy_(0, self.layout.keys[layer], keys.reshape(len(keys), -1))
        tokens.index_copy_(0, self.layout.values[layer], values.reshape(len(values), -1))
        shape = (keys.shape[1], keys.shape[2])
        seen = [
            self._decodes(group, layer, window, queries, shape)
            if isinstance(group, Decodes)
            else self._chunk(group, layer, window, queries, shape)
            for group in self.layout.groups
        ]
        return seen[0] if len(seen) == 1 else torch.cat(seen)

    def _decodes(self, group: Decodes, layer: int, window: Window, queries: Tensor, shape: tuple[int, int]) -> Tensor:
        """Attention of one group over its gathered blocks, [sequences, heads * head_dim].

        Query heads that share a key head are folded into the query dimension, here, or the head dimension of a chunk,
        so grouped-query attention copies no keys.
        """
        rows = queries[group.first : group.first + group.sequences]
        gathered = self._gathered(group, layer, group.sequences, shape)[:, :, : group.context]
        keys, values = gathered.transpose(2, 3).unbind(0)
        folded = rows.reshape(group.sequences, shape[0], -1, shape[1])
        return scaled_dot_product_attention(folded, keys, values, attn_mask=group.masks[window]).reshape(len(rows), -1)

    def _chunk(self, group: Chunk, layer: int, window: Window, queries: Tensor, shape: tuple[int, int]) -> Tensor:
        """[queries of the chunk, heads * head_dim]"""
        rows = queries[group.first : group.first + group.queries]
        keys, values = self._gathered(group, layer, 1, shape)[:, 0].transpose(1, 2).unsqueeze(2).unbind(0)
        split = rows.reshape(len(rows), shape[0], -1, shape[1]).permute(1, 2, 0, 3)
        seen = [_piece(piece, window, split, keys, values) for piece in group.pieces]
        out = seen[0] if len(seen) == 1 else torch.cat(seen, dim=2)
        return out.permute(2, 0, 1, 3).reshape(len(rows), -1)

    def _gathered(self, group: Decodes | Chunk, layer: int, sequences: int, shape: tuple[int, int]) -> Tensor:
        """[keys and values, sequences, tokens of its blocks, kv_heads, head_dim]"""
        return self.cache.rows.index_select(0, group.reads[layer]).view(2, sequences, -1, *shape)


def _piece(piece: Piece, window: Window, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[kv_heads, heads of each, queries of the piece, head_dim]. `queries`: of the chunk, of the same form; `keys`,
    `values`: [kv_heads, 1, tokens, head_dim]."""
    mine = queries[:, :, piece.first : piece.first + piece.queries]
    if piece.before or piece.after:
        mine = pad(mine, (0, 0, piece.before, piece.after))
    wide = (mine.shape[0], mine.shape[1], piece.context, mine.shape[3])
    mask = piece.masks[window]
    out = scaled_dot_product_attention(
        mine,
        keys[:, :, : piece.context].expand(wide),
        values[:, :, : piece.context].expand(wide),
        attn_mask=mask,
        is_causal=mask is None,
    )
    return out[:, :, piece.before : piece.before + piece.queries]
