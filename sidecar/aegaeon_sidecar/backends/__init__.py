"""The seam between our machinery (memory, lanes, sequences) and the execution of models."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Union

import numpy as np
from numpy.typing import NDArray

from aegaeon_native.arrays import DeviceBytes
from aegaeon_sidecar.sampling import SamplerState


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


@dataclass(frozen=True, slots=True)
class StepInput:
    """One sequence's part of a step.

    `tokens`: the ids to compute now (a chunk at prefill, one at decode); `position`: tokens whose KV is in already;
    `blocks`: its block table, long enough for position + len(tokens); `sampler` set when a token is to be sampled.
    `follows`: the token (`tokens` is empty then) is the one that the step launched before chooses for its input of this
    number; only after a step that `may_follow` allows to be followed. `sampler` does not know of that token yet.
    """

    tokens: Seq[int]
    position: int
    blocks: NDArray[np.int32]
    sampler: SamplerState | None
    follows: int | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled token; logprobs only where the request asked for them: (token id, logprob), likeliest first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class NotFinite:
    """No token can be chosen: the logits are NaN or infinite, as the model computed them or (`asked`) as the request's
    own penalties and biases made them."""

    asked: bool = False


Chosen = Union[Sampled, NotFinite, None]


class Launched(Protocol):
    """A forward pass under way."""

    def results(self) -> list[Chosen]:
        """Waits for the device: one entry for each input, None where nothing was to be sampled.

        A row without finite logits is NotFinite and changes no other. The ids of tokens are below the vocabulary's
        size.
        """
        ...


class Backend(Protocol):
    """Executes models whose parameters and KV cache are views of addresses that never change."""

    def describe(self, directory: Path, max_model_len: int) -> Layout:
        """Read config.json and the safetensors headers of `directory` and say what the model needs.

        Raises ModelError (missing or unsupported config, missing or truncated shards, wrong shapes, pickled weights)
        before a byte is copied anywhere. `max_model_len` 0 means the model's own.
        """
        ...

    def register(self, model: str, directory: Path, layout: Layout, *weights: DeviceBytes) -> None:
        """Build the model's shell once: parameters are views of `weights` (uint8, the model's range), for ever.

        `weights`, as `blocks` below: one for each rank.
        """
        ...

    def bind_kv(self, kv_shape: str, *blocks: DeviceBytes) -> None:
        """Tell where the blocks of a shape live (uint8 over the whole range of that shape)."""
        ...

    def forget(self, model: str) -> None:
        """Drop the shell."""
        ...

    def launch(self, model: str, inputs: Seq[StepInput], after: Launched | None = None) -> Launched:
        """Begin one forward pass over the batch (all prefill chunks or all decodes), sampling where asked.

        Passes run in the order of their launches. `after`: the one launched before, where an input `follows` it. What
        the pass reads and writes (weights, blocks) stays where it is until its results are there.
        """
        ...

    def may_follow(self, samplers: Seq[SamplerState | None]) -> bool:
        """Whether a step may be launched after a decode with these samplers before its tokens are known to the host."""
        ...
