"""Attention over KV blocks: the seam between the decoder's layers and how keys and values are written and read.

`Gathered` copies the blocks of a step side by side and calls the library: any device, any mix of chunks. For decodes on
a GPU there is `paged`, which reads the blocks where they are.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.step_layout import QUERY_TILE, Chunk, Decodes, Piece, StepLayout, Window

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias

    Bias = Tensor | CausalBias | None

_HALVES = (torch.float16, torch.bfloat16)


def prepare(device: torch.device) -> None:
    """Settings of the process for prompts on a GPU, before the first of them.

    FlashAttention computes every chunk. On Hopper torch prefers cuDNN for some, which plans anew for each length of a
    prompt, while all streams of the engine wait, keeps each plan, and adds up in another order than the chunks that
    it does not take. What the chunks need brings torch.compile, whose import takes a second.
    """
    if device.type == "cuda":
        importlib.import_module("torch.nn.attention.bias")
        torch.backends.cuda.enable_cudnn_sdp(False)


class Attention(Protocol):
    """One step's attention, called once by each layer in turn."""

    def attend(self, layer: int, window: Window, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write keys, values [tokens, kv_heads, head_dim]; return [tokens, heads * head_dim] for these queries."""
        ...


class Gathered:
    """The step of `layout`, over the blocks of `cache`."""

    def __init__(self, layout: StepLayout, cache: KvCache) -> None:
        self._layout, self._cache = layout, cache
        self._biases: dict[tuple[int, Window], Bias] = {}  # by a piece's first token row

    def attend(self, layer: int, window: Window, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See Attention."""
        tokens, layout = self._cache.tokens, self._layout
        tokens.index_copy_(0, layout.keys[layer], keys.reshape(len(keys), -1))
        tokens.index_copy_(0, layout.values[layer], values.reshape(len(values), -1))
        shape = (keys.shape[1], keys.shape[2])
        seen = [
            self._decodes(group, layer, window, queries, shape)
            if isinstance(group, Decodes)
            else self._chunk(group, layer, window, queries, shape)
            for group in layout.groups
        ]
        return seen[0] if len(seen) == 1 else torch.cat(seen)

    def _decodes(self, group: Decodes, layer: int, window: Window, queries: Tensor, shape: tuple[int, int]) -> Tensor:
        """Attention of one group over its gathered blocks, [sequences, heads * head_dim].

        Query heads that share a key head are folded into the query dimension, here, or the head dimension of a chunk,
        so grouped-query attention copies no keys.
        """
        rows = queries[group.first : group.first + group.sequences]
        gathered = self._gathered(group.reads[layer], group.sequences, shape)[:, :, : group.context]
        keys, values = gathered.transpose(2, 3).unbind(0)
        folded = rows.reshape(group.sequences, shape[0], -1, shape[1])
        return scaled_dot_product_attention(folded, keys, values, attn_mask=group.masks[window]).reshape(len(rows), -1)

    def _chunk(self, group: Chunk, layer: int, window: Window, queries: Tensor, shape: tuple[int, int]) -> Tensor:
        """[queries of the chunk, heads * head_dim]"""
        rows = queries[group.first : group.first + group.queries]
        gathered = self._gathered(group.reads + 2 * layer, 1, shape)
        keys, values = gathered[:, 0].transpose(1, 2).unsqueeze(2).unbind(0)
        split = rows.reshape(len(rows), shape[0], -1, shape[1]).permute(1, 2, 0, 3)
        seen = [attend_piece(piece, self._bias(group, piece, window), split, keys, values) for piece in group.pieces]
        out = seen[0] if len(seen) == 1 else torch.cat(seen, dim=2)
        return out.permute(2, 0, 1, 3).reshape(len(rows), -1)

    def _gathered(self, reads: Tensor, sequences: int, shape: tuple[int, int]) -> Tensor:
        """[keys and values, sequences, tokens of its blocks, kv_heads, head_dim]"""
        return self._cache.rows.index_select(0, reads).view(2, sequences, -1, *shape)

    def _bias(self, chunk: Chunk, piece: Piece, window: Window) -> Bias:
        """Made by the first layer of a kind, for all of them."""
        key = (chunk.first + piece.first, window)
        if key not in self._biases:
            self._biases[key] = piece_bias(piece, window, self._cache.flat)
        return self._biases[key]


def piece_bias(piece: Piece, window: Window, like: Tensor) -> Bias:
    """The mask of a piece's queries; None when plain causality is enough.

    A GPU's kernels align causality with the last token: they need no mask, and skip what no token sees. On a CPU,
    and for a window, it is an additive mask in the dtype of `like`, on its device: [before + queries + after, places],
    where `places` are those of the context and up to QUERY_TILE - 1 behind it, which no query sees.
    Where a mask and keys that are expanded meet 1 modulo 32 of them, torch's kernel gives wrong sums (pytorch 191937;
    seen on an H200).
    """
    reach = piece.context if window is None else min(window, piece.context)
    if reach >= piece.end == piece.context and not piece.after:
        if not piece.position:
            return None
        if like.is_cuda and not piece.before:
            from torch.nn.attention.bias import causal_lower_right

            return causal_lower_right(piece.queries, piece.context)
    places = torch.arange(-(-piece.context // QUERY_TILE) * QUERY_TILE, device=like.device)
    rows = torch.arange(piece.position - piece.before, piece.end + piece.after, device=like.device)
    back = rows[:, None] - places  # how far back a position lies
    mask = like.new_zeros(len(rows), len(places))
    return mask.masked_fill_((back < 0) | (back >= reach), float("-inf"))


def attend_piece(piece: Piece, bias: Bias, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[kv_heads, heads of each, queries of the piece, head_dim]. `queries`: of the chunk, of the same form; `keys`,
    `values`: [kv_heads, 1, tokens of whole blocks, head_dim]."""
    tile = queries[:, :, piece.first : piece.first + piece.queries]
    if piece.before or piece.after:
        tile = pad(tile, (0, 0, piece.before, piece.after))
    seen = bias.shape[1] if type(bias) is Tensor else piece.context
    keys, values = keys[:, :, :seen], values[:, :, :seen]
    shares_keys = shares_key_heads(tile, bias)
    if not shares_keys:
        wide = (tile.shape[0], tile.shape[1], seen, tile.shape[3])
        keys, values = keys.expand(wide), values.expand(wide)
    out = scaled_dot_product_attention(
        tile, keys, values, attn_mask=bias, is_causal=bias is None, enable_gqa=shares_keys
    )
    return out[:, :, piece.before : piece.before + piece.queries]


def shares_key_heads(queries: Tensor, bias: Bias) -> bool:
    """True when the library reads a key head once for all of its query heads: FlashAttention does, which takes 16 bits
    and only a causal mask. Other kernels get each key head as often as it has query heads."""
    return queries.is_cuda and queries.dtype in _HALVES and type(bias) is not Tensor  # a CausalBias is one, too
