"""Attention over KV blocks: the seam between the decoder's layers and how keys and values are written and read.

`Gathered` copies the blocks of a step side by side and calls the library: any device, any mix of chunks. For decodes on
a GPU there is `paged`, which reads the blocks where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.step_layout import Group, StepLayout, Window


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
        seen = [self._group(group, layer, window, queries, shape) for group in self.layout.groups]
        return seen[0] if len(seen) == 1 else torch.cat(seen)

    def _group(self, group: Group, layer: int, window: Window, queries: Tensor, shape: tuple[int, int]) -> Tensor:
        """Attention of one group over its gathered blocks, [rows of the group, heads * head_dim].

        Query heads that share a key head are folded into the query (decode) or head (chunk) dimension, so grouped-query
        attention copies no keys.
        """
        kv_heads, head_dim = shape
        rows = queries[group.first : group.first + group.sequences * group.queries]
        gathered = self.cache.rows.index_select(0, group.reads[layer]).view(2, group.sequences, -1, kv_heads, head_dim)
        gathered = gathered[:, :, : group.context]
        mask = group.masks[window]
        if not group.causal:
            keys, values = gathered.transpose(2, 3).unbind(0)
            folded = rows.reshape(group.sequences, kv_heads, -1, head_dim)
            return scaled_dot_product_attention(folded, keys, values, attn_mask=mask).reshape(len(rows), -1)
        keys, values = gathered[:, 0].transpose(1, 2).unsqueeze(2).unbind(0)
        split = rows.reshape(len(rows), kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        wide = (kv_heads, split.shape[1], group.context, head_dim)
        out = scaled_dot_product_attention(
            split, keys.expand(wide), values.expand(wide), attn_mask=mask, is_causal=mask is None
        )
        return out.permute(2, 0, 1, 3).reshape(len(rows), -1)
