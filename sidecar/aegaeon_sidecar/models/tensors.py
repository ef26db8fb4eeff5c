"""The tensors that a decoder needs: their names in the files and their shapes, in the order they lie in memory.

Order matters: q, k, v and gate, up are neighbours, so that one view can span them and one multiplication serve them.
"""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_sidecar.models.config import DecoderSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
SCORE = "score.weight"
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)  # buffers that old checkpoints carry; computed from config.json

Shape = tuple[int, ...]


def layer_name(layer: int, part: str) -> str:
    """`part` such as "self_attn.q_proj.weight"."""
    return f"model.layers.{layer}.{part}"


def tensor_shapes(spec: DecoderSpec) -> dict[str, Shape]:
    """Name -> shape of every tensor, in memory order."""
    shapes: dict[str, Shape] = {EMBEDDING: (spec.vocab_size, spec.hidden_size)}
    for layer in range(spec.layers):
        shapes.update((layer_name(layer, part), shape) for part, shape in _layer(spec))
    shapes[FINAL_NORM] = (spec.hidden_size,)
    if spec.purpose.classifies:
        shapes[SCORE] = (spec.outputs, spec.hidden_size)
    elif not spec.tied_embeddings and not spec.embeds:
        shapes[HEAD] = (spec.vocab_size, spec.hidden_size)
    return shapes


def head_of(spec: DecoderSpec) -> str | None:
    """The tensor that makes the output of the last hidden state; None: that is the output."""
    if spec.embeds:
        return None
    if spec.purpose.classifies:
        return SCORE
    return EMBEDDING if spec.tied_embeddings else HEAD


def canonical(name: str) -> str:
    """A decoder that was saved without its head has names that begin inside of it."""
    return name if name.startswith("model.") or name in (HEAD, SCORE) else f"model.{name}"


def may_ignore(spec: DecoderSpec, name: str) -> bool:
    """A tensor in the files that the decoder rightly does not use."""
    return name.endswith(IGNORED_SUFFIXES) or (name == HEAD and head_of(spec) != HEAD)


def _layer(spec: DecoderSpec) -> Iterator[tuple[str, Shape]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    yield "input_layernorm.weight", (hidden,)
    for part, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"self_attn.{part}.weight", (rows, hidden)
    if spec.qkv_bias:
        for part, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield f"self_attn.{part}.bias", (rows,)
    if spec.qk_norm:
        yield "self_attn.q_norm.weight", (spec.head_dim,)
        yield "self_attn.k_norm.weight", (spec.head_dim,)
    yield "self_attn.o_proj.weight", (hidden, queries)
    if spec.output_bias:
        yield "self_attn.o_proj.bias", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    yield "mlp.gate_proj.weight", (inner, hidden)
    yield "mlp.up_proj.weight", (inner, hidden)
    if spec.mlp_bias:
        yield "mlp.gate_proj.bias", (inner,)
        yield "mlp.up_proj.bias", (inner,)
    yield "mlp.down_proj.weight", (hidden, inner)
    if spec.mlp_bias:
        yield "mlp.down_proj.bias", (hidden,)
