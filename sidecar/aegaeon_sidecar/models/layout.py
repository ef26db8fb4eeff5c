"""The layout of a model's tensors in its range and of its KV blocks.

Tensors are bump-allocated, 256-byte aligned, in the engine's dtype; a KV block is one contiguous copy.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.models.config import DecoderSpec, read_spec, serve_length
from aegaeon_sidecar.models.files import find_tensors
from aegaeon_sidecar.models.placement import Layout, TensorPlace
from aegaeon_sidecar.models.sharding import part_of
from aegaeon_sidecar.models.tensors import tensor_shapes

ALIGNMENT = 256
ENGINE_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
_KEY = re.compile(r"l(\d+)-t(\d+)-h(\d+)-d(\d+)-(float32|float16|bfloat16)")


@dataclass(frozen=True, slots=True)
class KvShape:
    """One block holds [layers, 2 (keys, values), block_tokens, kv_heads, head_dim] of dtype."""

    layers: int
    block_tokens: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def key(self) -> str:
        """Its name on the wire; models with equal keys share blocks."""
        return f"l{self.layers}-t{self.block_tokens}-h{self.kv_heads}-d{self.head_dim}-{self.dtype}"

    @staticmethod
    def parse(key: str) -> KvShape:
        """The inverse of `key`. Raises BackendError."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise BackendError(f"KV shape {key!r} is not of the form l2-t16-h4-d64-float32")
        layers, tokens, heads, dim, dtype = match.groups()
        return KvShape(int(layers), int(tokens), int(heads), int(dim), dtype)

    @property
    def row_bytes(self) -> int:
        """The keys (or values) of one layer in one block."""
        return self.block_tokens * self.kv_heads * self.head_dim * ENGINE_DTYPES[self.dtype]

    @property
    def block_bytes(self) -> int:
        return self.layers * 2 * self.row_bytes


def kv_shape(spec: DecoderSpec, dtype: str, block_tokens: int) -> KvShape:
    """The shape of the blocks that this decoder's keys and values go into."""
    return KvShape(spec.layers, block_tokens, spec.kv_heads, spec.head_dim, dtype)


def place_tensors(spec: DecoderSpec, dtype: str) -> tuple[TensorPlace, ...]:
    """Bump allocation in memory order."""
    places, offset = [], 0
    for name, shape in tensor_shapes(spec).items():
        nbytes = math.prod(shape) * ENGINE_DTYPES[dtype]
        places.append(TensorPlace(name, offset, nbytes))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return tuple(places)


def lay_out(
    directory: Path, max_model_len: int, dtype: str, block_tokens: int, ranks: int = 1, task: str = ""
) -> Layout:
    """Read and check a model directory and lay it out for an engine of so many ranks that computes in `dtype`.

    Raises ModelError. Reads config.json and the headers, no byte of the weights.
    """
    spec = read_spec(directory, task)
    length = serve_length(spec, directory, max_model_len)
    tensors = find_tensors(directory, spec)
    part = part_of(spec, ranks, directory)
    places = place_tensors(part, dtype)
    shape = kv_shape(part, dtype, block_tokens)
    last = places[-1]
    return Layout(
        weight_bytes=-(-(last.offset + last.nbytes) // ALIGNMENT) * ALIGNMENT,
        tensors=places,
        kv_shape=shape.key,
        kv_block_bytes=shape.block_bytes,
        kv_block_tokens=block_tokens,
        max_model_len=length,
        files=tuple(sorted({tensor.file for tensor in tensors.values()})),
        ranks=ranks,
        vocab_size=spec.vocab_size,
        dtype=dtype,
        task=spec.purpose.task,
    )
