"""A model as the memory sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where one tensor lies in its model's range: byte offset (256-aligned), bytes, and its name in the files."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A model as the memory sees it: bytes of weights, the places of its tensors, and the shape of its KV cache.

    `files`: those that hold the weights, in order. `vocab_size`: token ids are below it; 0 where that is not known.
    Where an engine has several ranks, everything is as each of them has it: a part of the weights, at the same places,
    and a part of every block.
    """

    weight_bytes: int
    tensors: tuple[TensorPlace, ...]
    kv_shape: str
    kv_block_bytes: int
    kv_block_tokens: int
    max_model_len: int
    files: tuple[Path, ...]
    ranks: int = 1
    vocab_size: int = 0

    @property
    def image_bytes(self) -> int:
        """In an image all ranks' parts follow each other."""
        return self.ranks * self.weight_bytes
