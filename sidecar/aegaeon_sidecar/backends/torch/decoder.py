"""The decoder: Llama's, with the switches that make it Mistral, Qwen2 and Qwen3. Read it from `forward` down.

Source of every formula: the models' own papers; checked against transformers in tests/backend.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, silu

from aegaeon_sidecar.backends.torch.attention import Attention
from aegaeon_sidecar.backends.torch.parameters import Parameters
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

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention, last: Tensor | None) -> Tensor:
        """Logits float32 [rows of `last` (None: every row), vocab_size] of a step's tokens at their positions.

        Writes the step's keys and values by way of `attention`.
        """
        hidden = embedding(tokens, self._embedding)
        angles = self._rotary.angles(positions)
        for layer in self._layers:
            hidden = layer.forward(hidden, angles, attention)
        return self._head(self._norm(hidden if last is None else hidden[last])).float()


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

    def forward(self, hidden: Tensor, angles: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        hidden = hidden + self._attention(self._before_attention(hidden), angles, attention)
        gate, up = self._gate_up(self._before_mlp(hidden)).chunk(2, dim=-1)
        return hidden + self._down(silu(gate) * up)

    def _attention(self, x: Tensor, angles: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        qkv = self._qkv(x).view(len(x), -1, self._head_dim)
        rotated = rotate(self._normed(qkv[:, : self._heads + self._kv_heads]), *angles)
        queries, keys, values = rotated[:, : self._heads], rotated[:, self._heads :], qkv[:, -self._kv_heads :]
        return self._output(attention.attend(self._layer, self._window, queries, keys, values))

    def _normed(self, heads: Tensor) -> Tensor:
        """QK-norm (Qwen3): over each head, before the rotation."""
        if self._head_norms is None:
            return heads
        query, key = self._head_norms
        return torch.cat((query(heads[:, : self._heads]), key(heads[:, self._heads :])), dim=1)
