"""Attention over KV blocks: the seam between the decoder's layers and how keys and values are written and read.

`Gathered` copies the blocks of a step side by side and calls the library: any device, any mix of chunks. For decodes on
a GPU there is `paged`, which reads the blocks where they are.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.step_layout import Chunk, Group, StepLayout, Window

Bias = Tensor | CausalBias | None


class Attention(Protocol):
    """One step's attention, called once by each layer in turn."""

    def attend(self, layer: int, window: Window, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write keys, values [tokens, kv_heads, head_dim]; return [tokens, heads * head_dim] for these queries."""
        ...


class Gathered:
    """The step of `layout`, over the blocks of `cache`."""

    def __init__(self, layout: StepLayout, cache: KvCache) -> None:
        self._layout, self._cache = layout, cache
        self._biases: dict[tuple[int, Window], Bias] = {}

    def attend(self, layer: int, window: Window, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See Attention."""
        tokens, layout = self._cache.tokens, self._layout
        tokens.index_copy_(0, layout.keys[layer], keys.reshape(len(keys), -1))
        tokens.index_copy_(0, layout.values[layer], values.reshape(len(values), -1))
        shape = (keys.shape[1], keys.shape[2])
        seen = [self._group(group, layer, window, queries, shape) for group in layout.groups]
        seen += [self._chunk(chunk, layer, window, queries, shape) for chunk in layout.chunks]
        return seen[0] if len(seen) == 1 else torch.cat(seen)

    def _group(self, group: Group, layer: int, window: Window, queries: Tensor, shape: tuple[int, int]) -> Tensor:
        """[rows of the group, heads * head_dim]. Query heads that share a key head are folded into the query dimension,
        so grouped-query attention copies no keys."""
        kv_heads, head_dim = shape
        rows = queries[group.first : group.first + group.sequences]
        gathered = self._gathered(group.reads[layer], group.sequences, group.context, shape)
        keys, values = gathered.transpose(2, 3).unbind(0)
        folded = rows.reshape(group.sequences, kv_heads, -1, head_dim)
        mask = group.masks[window]
        return scaled_dot_product_attention(folded, keys, values, attn_mask=mask).reshape(len(rows), -1)

    def _chunk(self, chunk: Chunk, layer: int, window: Window, queries: Tensor, shape: tuple[int, int]) -> Tensor:
        """[rows of the chunk, heads * head_dim]. Query heads that share a key head are its heads, and copy no keys."""
        kv_heads, head_dim = shape
        rows = queries[chunk.first : chunk.first + chunk.queries]
        gathered = self._gathered(chunk.reads + 2 * layer, 1, chunk.context, shape)
        keys, values = gathered[:, 0].transpose(1, 2).unsqueeze(2).unbind(0)
        split = rows.reshape(len(rows), kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        wide = (kv_heads, split.shape[1], chunk.context, head_dim)
        bias = self._bias(chunk, window)
        out = scaled_dot_product_attention(
            split, keys.expand(wide), values.expand(wide), attn_mask=bias, is_causal=bias is None
        )
        return out.permute(2, 0, 1, 3).reshape(len(rows), -1)

    def _gathered(self, reads: Tensor, sequences: int, context: int, shape: tuple[int, int]) -> Tensor:
        """Keys and values of a layer side by side: [2, sequences, context, kv_heads, head_dim]."""
        gathered = self._cache.rows.index_select(0, reads).view(2, sequences, -1, *shape)
        return gathered[:, :, :context]

    def _bias(self, chunk: Chunk, window: Window) -> Bias:
        """Made by the first layer of a kind, for all of them."""
        key = (chunk.first, window)
        if key not in self._biases:
            self._biases[key] = chunk_bias(chunk, window, self._cache.flat)
        return self._biases[key]


def chunk_bias(chunk: Chunk, window: Window, like: Tensor) -> Bias:
    """What the tokens of a chunk see: none where a library's causal attention begins as it does.

    A GPU's kernels align causality with the last token: they need no mask, and skip what no token sees. On a CPU,
    and for a window, it is an additive mask in the dtype of `like`, made on its device: [queries, context].
    """
    reach = chunk.context if window is None else min(window, chunk.context)
    if reach == chunk.context and chunk.start == 0:
        return None
    if reach == chunk.context and like.is_cuda:
        return causal_lower_right(chunk.queries, chunk.context)
    return _mask(chunk, reach, like)


def _mask(chunk: Chunk, reach: int, like: Tensor) -> Tensor:
    places = torch.arange(chunk.context, device=like.device)
    back = places[chunk.start :, None] - places  # how far back a position lies
    mask = like.new_zeros(chunk.queries, chunk.context)
    return mask.masked_fill_((back < 0) | (back >= reach), float("-inf"))
