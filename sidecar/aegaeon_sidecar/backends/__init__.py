"""The interface between our machinery (memory, lanes, sequences) and model execution."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aegaeon_native.arrays import DeviceBytes
from aegaeon_proto.engine.sampling import PoolingParams
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.sampling import Chosen, SamplerState

MAX_GRAPHS = 128
"""Passes of decodes of all models that a GPU keeps captured, unless it is configured; each takes some MiB there."""


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """Reservation of an engine for adapters. `slots`: adapters of one model on the device that a step can compute with;
    `nbytes`: of all models' slots together, each of which has room for a rank of `max_rank`."""

    max_rank: int
    slots: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter in host memory. `key`: of the bytes and the settings; `settings`: its adapter_config.json; `image`:
    laid out as described, not changed and not freed while a step is launched."""

    key: str
    layout: Layout
    settings: bytes
    image: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class StepInput:
    """One sequence's part of a step.

    `tokens`: the ids to compute now (a chunk at prefill, one at decode); `position`: tokens whose KV is in already;
    `blocks`: its block table, long enough for position + len(tokens); `sampler` set when a token is to be sampled.
    `follows`: the token (`tokens` is empty then) is the one that the step launched before chooses for its input of this
    number; only in and after steps whose samplers `may_follow` allows. `sampler` does not know of that token yet.
    `adapter`: of the model, None: the model as it is.
    `scored`: tokens of the prompt, each of which follows one of `tokens`: what the model says of them is wanted, and of
    `likeliest` tokens beside each. Such an input is a step of its own; its result is Scored.
    `pooling`: set instead of `sampler` where what the model makes of the prompt is wanted; the result is Pooled.
    `prompt`: it is part of a prompt, also where that part is one token: computed as longer ones are.
    """

    tokens: Seq[int]
    position: int
    blocks: NDArray[np.int32]
    sampler: SamplerState | None
    follows: int | None = None
    scored: Seq[int] | None = None
    likeliest: int = 0
    adapter: AdapterWeights | None = None
    pooling: PoolingParams | None = None
    prompt: bool = False

    @property
    def is_decode(self) -> bool:
        """One token behind the others of its sequence."""
        return self.follows is not None or (len(self.tokens) == 1 and not self.prompt and self.scored is None)


class Launched(Protocol):
    """A forward pass under way."""

    def results(self) -> list[Chosen]:
        """Waits for the device: one entry for each input, None where nothing was to be sampled.

        A row without finite logits is NotFinite and changes no other. The ids of tokens are below the vocabulary's
        size.
        """
        ...


class Backend(Protocol):
    """Executes models whose parameters and KV cache are views of addresses that never change.

    The fetcher's thread calls `describe`, `register`, `bind_kv` and `forget`, the compute lane's thread `launch` and
    `results`, at the same time for different models. The engine's lock is held in none of them, only in `may_follow`,
    which must not block.
    """

    def describe(self, directory: Path, max_model_len: int, task: str = "") -> Layout:
        """Read config.json and the safetensors headers of `directory` and say what the model needs.

        `task`: what it is for; "": what its files show.

        Raises ModelError (missing or unsupported config, missing or truncated shards, wrong shapes, pickled weights)
        before a byte is copied anywhere. `max_model_len` 0 means the model's own.
        """
        ...

    def register(self, model: str, directory: Path, layout: Layout, *weights: DeviceBytes) -> None:
        """Build the model's shell once: parameters are views of `weights` (uint8, the model's range), for ever.

        `weights`, as `blocks` below: one for each rank.
        """
        ...

    def describe_adapter(self, model: str, directory: Path) -> Layout:
        """Read the settings and the header of an adapter, and say how its image is laid out.

        Raises ModelError where it does not fit the model, which is registered, or where there are no adapters.
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

        Raises, as `results` does, BackendError or one of Python's RuntimeError, ValueError, LookupError, MemoryError,
        ArithmeticError and TypeError: the step is tried again in halves, and nothing of it may be under way.
        DeviceLostError, or anything else, ends the process.
        """
        ...

    def again(self, model: str, before: Launched) -> Launched | None:
        """Begin the decodes after `before`, whose results were taken: its inputs once more, each with the token that it
        chose and its sampler has accepted, in the blocks that it had, which have room.

        None: nothing has begun; launch them with their inputs. Raises as `launch` does.
        """
        ...

    @property
    def captured(self) -> tuple[int, ...]:
        """Least numbers of sequences of the decodes of which each kind, running first, has a graph captured or kernels
        compiled; ascending from 1. Empty: none takes longer for that."""
        ...

    def may_follow(self, samplers: Seq[SamplerState | None]) -> bool:
        """True when a step may be launched after a decode with these samplers before the host knows its tokens."""
        ...
