"""The decoder: Llama's, with the switches that make it Mistral, Qwen2 and Qwen3. Read it from `forward` down.

Source of every formula: the models' own papers; checked against transformers in tests/backend. An engine of several
ranks has a part of every layer on each (models/sharding.py): they compute side by side up to the next sum.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, silu

from aegaeon_sidecar.backends.torch.attention import Attention
from aegaeon_sidecar.backends.torch.parameters import Parameters
from aegaeon_sidecar.backends.torch.rope import Rotary, rotate
from aegaeon_sidecar.models.config import DecoderSpec
from aegaeon_sidecar.models.tensors import EMBEDDING, FINAL_NORM, head_of, layer_name

Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class RankInput:
    """A step as one rank gets it, on its device: tokens at their positions, and its way to keys and values.

    `last`: the rows whose logits are wanted; None: every row.
    """

    tokens: Tensor
    positions: Tensor
    attention: Attention
    last: Tensor | None


class Decoder:
    """A model's shell: the graph over parameters that may or may not be in memory just now.

    `spec`: of the whole model; `parts`: what each rank has of it.
    """

    def __init__(self, spec: DecoderSpec, parts: Seq[Part]) -> None:
        self.spec = spec
        self._parts = parts

    def forward(self, inputs: Seq[RankInput]) -> Tensor:
        """Float32 [rows of `last`, outputs], on the first rank's device: logits, or the output of a pooling model.

        `inputs`: one for each rank.

        Writes the step's keys and values by way of `attention`.
        """
        ranks = list(zip(self._parts, inputs, strict=True))
        hidden = _everywhere(_sum([part.embed(step.tokens) for part, step in ranks]), inputs)
        angles = [part.angles(step.positions) for part, step in ranks]
        for number in range(self.spec.layers):
            layers = [part.layers[number] for part in self._parts]
            steps = zip(layers, hidden, angles, inputs, strict=True)
            attended = [layer.attend(state, turned, step.attention) for layer, state, turned, step in steps]
            hidden = _everywhere(hidden[0] + _sum(attended), inputs)
            fed = [layer.feed(state) for layer, state in zip(layers, hidden, strict=True)]
            hidden = _everywhere(hidden[0] + _sum(fed), inputs)
        outputs = [part.output(state, step.last) for (part, step), state in zip(ranks, hidden, strict=True)]
        return _side_by_side(outputs)[:, : self.spec.outputs].float()


def _sum(parts: list[Tensor]) -> Tensor:
    """The sum on the first rank's device, in the order of ranks: the same bits in any batch."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part.to(total.device, non_blocking=True)
    return total


def _everywhere(tensor: Tensor, inputs: Seq[RankInput]) -> list[Tensor]:
    """A copy of the tensor on each rank's device."""
    return [tensor.to(step.tokens.device, non_blocking=True) for step in inputs]


def _side_by_side(outputs: list[Tensor]) -> Tensor:
    """Join the outputs of the ranks' parts of the vocabulary on the first rank's device; outputs other than logits are
    the same on all ranks."""
    if len(outputs) == 1:
        return outputs[0]
    return torch.cat([part.to(outputs[0].device, non_blocking=True) for part in outputs], dim=-1)


class Part:
    """A rank's part of a decoder, of which `spec` gives the sizes: with one rank, all of it."""

    def __init__(self, spec: DecoderSpec, parameters: Parameters, dtype: torch.dtype, rank: int, ranks: int) -> None:
        embedded = parameters.tensor(EMBEDDING)
        self._embedding = embedded
        self._from_token = rank * len(embedded) if ranks > 1 else None
        head = head_of(spec)
        self._head = None if head is None else parameters.linear(head.removesuffix(".weight"))
        self._norm = Norm(parameters.tensor(FINAL_NORM), spec.norm_eps)
        self._rotary = Rotary(spec.rope, spec.head_dim, dtype, embedded.device)
        self.layers = [Layer(spec, parameters, layer) for layer in range(spec.layers)]

    def embed(self, tokens: Tensor) -> Tensor:
        """[tokens, hidden_size]; zeros for tokens of other ranks' parts of the vocabulary."""
        if self._from_token is None:
            return embedding(tokens, self._embedding)
        row = tokens - self._from_token
        elsewhere = (row < 0) | (row >= len(self._embedding))
        return embedding(row.masked_fill(elsewhere, 0), self._embedding).masked_fill(elsewhere[:, None], 0.0)

    def angles(self, positions: Tensor) -> Angles:
        """The rotation angles of this step's queries and keys."""
        return self._rotary.angles(positions)

    def output(self, hidden: Tensor, last: Tensor | None) -> Tensor:
        """Logits of its part of the vocabulary; of a model without a head the hidden state itself."""
        normed = self._norm(hidden if last is None else hidden[last])
        return normed if self._head is None else self._head(normed)


class Norm:
    """Root mean square layer norm (arXiv 1910.07467)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._shape = list(weight.shape)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self._shape, self._weight, self._eps)


class Layer:
    """Attention and feed-forward, each behind a norm; what they give is added to the residual stream [tokens,
    hidden_size]: all of it, or this rank's part of the sum."""

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

    def attend(self, hidden: Tensor, angles: Angles, attention: Attention) -> Tensor:
        qkv = self._qkv(self._before_attention(hidden)).view(len(hidden), -1, self._head_dim)
        rotated = rotate(self._normed(qkv[:, : self._heads + self._kv_heads]), *angles)
        queries, keys, values = rotated[:, : self._heads], rotated[:, self._heads :], qkv[:, -self._kv_heads :]
        return self._output(attention.attend(self._layer, self._window, queries, keys, values))

    def feed(self, hidden: Tensor) -> Tensor:
        gate, up = self._gate_up(self._before_mlp(hidden)).chunk(2, dim=-1)
        return self._down(silu(gate) * up)

    def _normed(self, heads: Tensor) -> Tensor:
        """QK-norm (Qwen3): over each head, before the rotation."""
        if self._head_norms is None:
            return heads
        query, key = self._head_norms
        return torch.cat((query(heads[:, : self._heads]), key(heads[:, self._heads :])), dim=1)
