"""The torch backend: shells by model name, caches by KV shape, and `step`.

Parameters and KV are views of addresses that never change; whether a model's bytes are there is the caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aegaeon_sidecar.backends import Layout, Sampled, StepInput
from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.choose import choose
from aegaeon_sidecar.backends.torch.decoder import Decoder
from aegaeon_sidecar.backends.torch.parameters import Parameters
from aegaeon_sidecar.backends.torch.plan import Planner
from aegaeon_sidecar.backends.torch.rows import row_tile
from aegaeon_sidecar.errors import BackendError
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.layout import ENGINE_DTYPES, KvShape, kv_shape, place_tensors, plan
from aegaeon_sidecar.models.tensors import tensor_shapes


@dataclass(frozen=True, slots=True)
class _Shell:
    decoder: Decoder
    planner: Planner
    shape: KvShape


def configure_threads(threads: int) -> None:
    """How many threads torch computes with. A setting of the whole process: call it once, at its start."""
    torch.set_num_threads(threads)


class TorchBackend:
    """Implements backends.Backend. `dtype`: float32, float16 or bfloat16; `block_tokens`: tokens in a KV block.

    Not thread-safe for one model; different models may step from different threads. With the same batch composition
    (tokens, positions) a step gives bitwise the same logits, wherever the blocks lie. With `batch_invariant` (default)
    also whatever the rest of the batch is, if the matrix library allows it on this machine (see `rows`); that costs
    nothing from 4 sequences on and up to three times a matrix-vector product for one alone.
    """

    def __init__(
        self, *, device: str = "cpu", dtype: str = "float32", block_tokens: int = 16, batch_invariant: bool = True
    ) -> None:
        if dtype not in ENGINE_DTYPES:
            raise BackendError(f"dtype is {dtype!r}; allowed: {', '.join(ENGINE_DTYPES)}")
        if device != "cpu":
            raise BackendError(f"device is {device!r}; allowed: cpu")
        self._device = torch.device(device)
        self._dtype_name = dtype
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._block_tokens = block_tokens
        self._wants_invariance = batch_invariant
        self._shells: dict[str, _Shell] = {}
        self._caches: dict[str, KvCache] = {}

    @property
    def row_tile(self) -> int:
        """What batches are padded to, so that rows do not depend on each other; 0 when they may."""
        return row_tile(self._dtype, torch.get_num_threads()) if self._wants_invariance else 0

    def describe(self, directory: Path, max_model_len: int) -> Layout:
        """See Backend."""
        return plan(directory, max_model_len, self._dtype_name, self._block_tokens)

    def register(self, model: str, directory: Path, layout: Layout, weights: NDArray[np.uint8]) -> None:
        """See Backend. Touches no byte of `weights`. Raises BackendError when layout and directory disagree."""
        spec = read_spec(directory)
        shape = kv_shape(spec, self._dtype_name, self._block_tokens)
        if layout.tensors != place_tensors(spec, self._dtype_name) or layout.kv_shape != shape.key:
            raise BackendError(f"{directory}: changed since it was described, or described by another backend")
        if weights.nbytes < layout.weight_bytes:
            raise BackendError(f"{model}: its range has {weights.nbytes} bytes, {layout.weight_bytes} are needed")
        tile = self.row_tile
        with torch.inference_mode():
            parameters = Parameters(layout, tensor_shapes(spec), self._dtype, weights, tile or 1)
            decoder = Decoder(spec, parameters, self._dtype, self._device)
        planner = Planner(shape, spec.windows, spec.vocab_size, self._device, invariant=tile > 0)
        self._shells[model] = _Shell(decoder, planner, shape)

    def bind_kv(self, kv_shape: str, blocks: NDArray[np.uint8]) -> None:
        """See Backend. Touches no byte of `blocks`."""
        self._caches[kv_shape] = KvCache(KvShape.parse(kv_shape), blocks)

    def forget(self, model: str) -> None:
        """See Backend. Unknown names are fine."""
        self._shells.pop(model, None)

    def step(self, model: str, inputs: Seq[StepInput]) -> list[Sampled | None]:
        """See Backend. Reads the samplers and changes none: the caller accepts the tokens that it keeps."""
        wanted = [i for i, part in enumerate(inputs) if part.sampler is not None]
        samplers = [part.sampler for part in inputs if part.sampler is not None]
        results: list[Sampled | None] = [None] * len(inputs)
        with torch.inference_mode():
            chosen = choose(self._forward(model, inputs, wanted), samplers)
        for i, sampled in zip(wanted, chosen, strict=True):
            results[i] = sampled
        return results

    def logits(self, model: str, inputs: Seq[StepInput]) -> Tensor:
        """A step without sampling: the logits after each input's last token, float32 [inputs, vocab_size]."""
        with torch.inference_mode():
            return self._forward(model, inputs, range(len(inputs)))

    def _forward(self, model: str, inputs: Seq[StepInput], wanted: Seq[int]) -> Tensor:
        shell = self._shells.get(model)
        if shell is None:
            raise BackendError(f"model {model!r} is not registered; register it first")
        cache = self._caches.get(shell.shape.key)
        if cache is None:
            raise BackendError(f"KV shape {shell.shape.key} has no blocks; bind them first")
        if not inputs:
            return torch.empty(0, shell.decoder.spec.vocab_size)
        return shell.decoder.forward(shell.planner.plan(inputs, wanted, cache.capacity), cache)
