"""The decoder: Llama's, with the switches that make it Mistral, Qwen2 and Qwen3. Read it from `forward` down.

Source of every formula: the models' own papers; checked against transformers in tests/backend.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu

from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.parameters import Parameters
from aegaeon_sidecar.backends.torch.plan import Group, StepPlan
from aegaeon_sidecar.backends.torch.rope import Rotary, rotate
from aegaeon_sidecar.models.config import DecoderSpec
from aegaeon_sidecar.models.tensors import EMBEDDING, FINAL_NORM, HEAD, layer_name


class Decoder:
    """A model's shell: the graph over parameters that may or may not be in memory just now."""

    def __init__(self, spec: DecoderSpec, parameters: Parameters, dtype: torch.dtype, device: torch.device) -> None:
        self.spec = spec
        self._embedding = parameters.tensor(EMBEDDING)
        self._head = parameters.linear((EMBEDDING if spec.tied_embeddings else HEAD).removesuffix(".weight"))
        self._norm = Norm(parameters.tensor(FINAL_NORM), spec.norm_eps)
        self._rotary = Rotary(spec.rope, spec.head_dim, dtype, device)
        self._layers = [Layer(spec, parameters, layer) for layer in range(spec.layers)]

    def forward(self, plan: StepPlan, cache: KvCache) -> Tensor:
        """Logits [len(plan.last), vocab_size], float32. Writes the step's keys and values into the cache."""
        if plan.fresh is not None:
            cache.blocks.index_fill_(0, plan.fresh, 0.0)
        hidden = embedding(plan.tokens, self._embedding)
        angles = self._rotary.angles(plan.positions)
        for layer in self._layers:
            hidden = layer.forward(hidden, angles, plan, cache)
        return self._head(self._norm(hidden[plan.last])).float()


class Norm:
    """Root mean square layer norm (arXiv 1910.07467)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._shape = list(weight.shape)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self._shape, self._weight, self._eps)


class Layer:
    """Attention and feed-forward, each behind a norm and added to the residual stream [tokens, hidden_size]."""

    def __init__(self, spec: DecoderSpec, parameters: Parameters, layer: int) -> None:
        def norm(part: str) -> Norm:
            return Norm(parameters.tensor(layer_name(layer, f"{part}.weight")), spec.norm_eps)

        def name(part: str) -> str:
            return layer_name(layer, part)

        self._layer = layer
        self._heads, self._kv_heads, self._head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self._window = spec.windows[layer]
        self._before_attention = norm("input_layernorm")
        self._qkv = parameters.linear(*(name(f"self_attn.{part}_proj") for part in "qkv"))
        self._head_norms = (norm("self_attn.q_norm"), norm("self_attn.k_norm")) if spec.qk_norm else None
        self._output = parameters.linear(name("self_attn.o_proj"))
        self._before_mlp = norm("post_attention_layernorm")
        self._gate_up = parameters.linear(name("mlp.gate_proj"), name("mlp.up_proj"))
        self._down = parameters.linear(name("mlp.down_proj"))

    def forward(self, hidden: Tensor, angles: tuple[Tensor, Tensor], plan: StepPlan, cache: KvCache) -> Tensor:
        hidden = hidden + self._attention(self._before_attention(hidden), angles, plan, cache)
        gate, up = self._gate_up(self._before_mlp(hidden)).chunk(2, dim=-1)
        return hidden + self._down(silu(gate) * up)

    def _attention(self, x: Tensor, angles: tuple[Tensor, Tensor], plan: StepPlan, cache: KvCache) -> Tensor:
        qkv = self._qkv(x).view(len(x), -1, self._head_dim)
        rotated = rotate(self._normed(qkv[:, : self._heads + self._kv_heads]), *angles)
        queries, keys, values = rotated[:, : self._heads], rotated[:, self._heads :], qkv[:, -self._kv_heads :]
        cache.tokens.index_copy_(0, plan.keys[self._layer], keys.reshape(len(x), -1))
        cache.tokens.index_copy_(0, plan.values[self._layer], values.reshape(len(x), -1))
        seen = [self._attend(group, queries, cache) for group in plan.groups]
        return self._output(seen[0] if len(seen) == 1 else torch.cat(seen))

    def _normed(self, heads: Tensor) -> Tensor:
        """QK-norm (Qwen3): over each head, before the rotation."""
        if self._head_norms is None:
            return heads
        query, key = self._head_norms
        return torch.cat((query(heads[:, : self._heads]), key(heads[:, self._heads :])), dim=1)

    def _attend(self, group: Group, queries: Tensor, cache: KvCache) -> Tensor:
        """Attention of one group over its gathered blocks, [rows of the group, heads * head_dim].

        Query heads that share a key head are folded into the query (decode) or head (chunk) dimension, so grouped-query
        attention copies no keys.
        """
        rows = queries[group.first : group.first + group.sequences * group.queries]
        shape = (2, group.sequences, -1, self._kv_heads, self._head_dim)
        gathered = cache.rows.index_select(0, group.reads[self._layer]).view(shape)[:, :, : group.context]
        mask = group.masks[self._window]
        if not group.causal:
            keys, values = gathered.transpose(2, 3).unbind(0)
            folded = rows.reshape(group.sequences, self._kv_heads, -1, self._head_dim)
            return scaled_dot_product_attention(folded, keys, values, attn_mask=mask).reshape(len(rows), -1)
        keys, values = gathered[:, 0].transpose(1, 2).unsqueeze(2).unbind(0)
        split = rows.reshape(len(rows), self._kv_heads, -1, self._head_dim).permute(1, 2, 0, 3)
        wide = (self._kv_heads, split.shape[1], group.context, self._head_dim)
        out = scaled_dot_product_attention(
            split, keys.expand(wide), values.expand(wide), attn_mask=mask, is_causal=mask is None
        )
        return out.permute(2, 0, 1, 3).reshape(len(rows), -1)
