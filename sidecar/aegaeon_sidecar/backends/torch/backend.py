"""The torch backend: shells by model name, caches by KV shape, and `step`.

Parameters and KV are views of addresses that never change; whether a model's bytes are there is the caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from aegaeon_native.arrays import DeviceBytes
from aegaeon_sidecar.backends import Layout, Sampled, StepInput
from aegaeon_sidecar.backends.torch.attention import Gathered
from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.choose import choose
from aegaeon_sidecar.backends.torch.decoder import Decoder
from aegaeon_sidecar.backends.torch.device import open_device
from aegaeon_sidecar.backends.torch.parameters import Parameters
from aegaeon_sidecar.backends.torch.plan import Planner
from aegaeon_sidecar.backends.torch.rows import row_tile
from aegaeon_sidecar.errors import BackendError
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.layout import ENGINE_DTYPES, KvShape, kv_shape, place_tensors, plan
from aegaeon_sidecar.models.tensors import tensor_shapes

if TYPE_CHECKING:
    from aegaeon_sidecar.backends.torch.decodes import Decoded, Decodes


@dataclass(slots=True)
class _Shell:
    """`decodes`: made at the first decode, where decodes are paged."""

    decoder: Decoder
    planner: Planner
    shape: KvShape
    max_model_len: int
    decodes: Decodes | None = None


def configure_threads(threads: int) -> None:
    """How many threads torch computes with. A setting of the whole process: call it once, at its start."""
    torch.set_num_threads(threads)


class TorchBackend:
    """Implements backends.Backend. `dtype`: float32, float16 or bfloat16; `block_tokens`: tokens in a KV block.

    Not thread-safe for one model; different models may step from different threads. With the same batch composition
    (tokens, positions) a step gives bitwise the same logits, wherever the blocks lie. With `batch_invariant` (default)
    also whatever the rest of the batch is, if the matrix library allows it on this machine (see `rows`); that costs
    nothing from 4 sequences on and up to three times a matrix-vector product for one alone.

    `paged`: decodes run at one fixed shape over the blocks where they lie (see `decodes`), which is how a GPU's are
    batch-invariant; None: on a GPU. Elsewhere it needs Triton's interpreter.
    """

    def __init__(
        self,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        block_tokens: int = 16,
        batch_invariant: bool = True,
        paged: bool | None = None,
    ) -> None:
        if dtype not in ENGINE_DTYPES:
            raise BackendError(f"dtype is {dtype!r}; allowed: {', '.join(ENGINE_DTYPES)}")
        self._device = open_device(device)
        self._paged = self._device.type == "cuda" if paged is None else paged
        self._dtype_name = dtype
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._block_tokens = block_tokens
        self._wants_invariance = batch_invariant
        self._shells: dict[str, _Shell] = {}
        self._caches: dict[str, KvCache] = {}

    @property
    def row_tile(self) -> int:
        """What batches are padded to, so that rows do not depend on each other; 0 when they may."""
        if self._paged:
            return 1  # decodes have one shape, and a prefill is one sequence's
        return row_tile(self._dtype, torch.get_num_threads()) if self._wants_invariance else 0

    def describe(self, directory: Path, max_model_len: int) -> Layout:
        """See Backend."""
        return plan(directory, max_model_len, self._dtype_name, self._block_tokens)

    def register(self, model: str, directory: Path, layout: Layout, weights: DeviceBytes) -> None:
        """See Backend. Touches no byte of `weights`. Raises BackendError when layout and directory disagree."""
        spec = read_spec(directory)
        shape = kv_shape(spec, self._dtype_name, self._block_tokens)
        if layout.tensors != place_tensors(spec, self._dtype_name) or layout.kv_shape != shape.key:
            raise BackendError(f"{directory}: changed since it was described, or described by another backend")
        memory = from_dlpack(weights)
        if len(memory) < layout.weight_bytes:
            raise BackendError(f"{model}: its range has {len(memory)} bytes, {layout.weight_bytes} are needed")
        tile = self.row_tile
        with torch.inference_mode():
            parameters = Parameters(layout, tensor_shapes(spec), self._dtype, memory, tile or 1)
            decoder = Decoder(spec, parameters, self._dtype, self._device)
        planner = Planner(shape, spec.windows, spec.vocab_size, self._device, invariant=tile > 0)
        self._shells[model] = _Shell(decoder, planner, shape, layout.max_model_len)

    def bind_kv(self, kv_shape: str, blocks: DeviceBytes) -> None:
        """See Backend. Touches no byte of `blocks`."""
        self._caches[kv_shape] = KvCache(KvShape.parse(kv_shape), blocks)

    def forget(self, model: str) -> None:
        """See Backend. Unknown names are fine."""
        self._shells.pop(model, None)

    def step(self, model: str, inputs: Seq[StepInput]) -> list[Sampled | None]:
        """See Backend. Reads the samplers and changes none: the caller accepts the tokens that it keeps."""
        if self._paged and all(len(part.tokens) == 1 for part in inputs):
            return [sampled for some in self._by_rows(inputs) for sampled in self.launch(model, some).results()]
        wanted = [i for i, part in enumerate(inputs) if part.sampler is not None]
        samplers = [part.sampler for part in inputs if part.sampler is not None]
        results: list[Sampled | None] = [None] * len(inputs)
        with torch.inference_mode():
            chosen = choose(self._forward(model, inputs, wanted), samplers)
        for i, sampled in zip(wanted, chosen, strict=True):
            results[i] = sampled
        return results

    def launch(self, model: str, inputs: Seq[StepInput], after: Decoded | None = None) -> Decoded:
        """A step of at most decodes.ROWS decodes that is not waited for; `paged` backends only.

        Where `after`, the step launched before on this model, chooses a token that is not known yet, the input's
        `follows` names it; its sampler may then not depend on that token (see draws.on_device), nor be a copy.
        """
        from aegaeon_sidecar.backends.torch.decodes import ROWS, Decodes

        if not self._paged or not 0 < len(inputs) <= ROWS:
            raise BackendError(f"{len(inputs)} decodes cannot be launched; 1 to {ROWS} on a paged backend can")
        if after is None and any(part.follows is not None for part in inputs):
            raise BackendError("an input follows a step that was not launched")
        shell, cache = self._shell(model)
        with torch.inference_mode():
            if shell.decodes is None:
                capture = self._device.type == "cuda"
                shell.decodes = Decodes(shell.decoder, cache, shell.max_model_len, self._device, capture)
            return shell.decodes.launch(inputs)

    def logits(self, model: str, inputs: Seq[StepInput]) -> Tensor:
        """A step without sampling: the logits after each input's last token, float32 [inputs, vocab_size]."""
        if self._paged and inputs and all(len(part.tokens) == 1 for part in inputs):
            return torch.cat([self._launched_logits(model, some) for some in self._by_rows(inputs)])
        with torch.inference_mode():
            return self._forward(model, inputs, range(len(inputs)))

    def _launched_logits(self, model: str, inputs: Seq[StepInput]) -> Tensor:
        self.launch(model, inputs)
        decodes = self._shells[model].decodes
        assert decodes is not None  # it was just launched
        return decodes.logits[: len(inputs)].clone()

    def _by_rows(self, inputs: Seq[StepInput]) -> list[Seq[StepInput]]:
        from aegaeon_sidecar.backends.torch.decodes import ROWS

        return [inputs[first : first + ROWS] for first in range(0, len(inputs), ROWS)]

    def _forward(self, model: str, inputs: Seq[StepInput], wanted: Seq[int]) -> Tensor:
        shell, cache = self._shell(model)
        if not inputs:
            return torch.empty(0, shell.decoder.spec.vocab_size)
        plan = shell.planner.plan(inputs, wanted, cache.capacity)
        if plan.fresh is not None:
            cache.blocks.index_fill_(0, plan.fresh, 0.0)
        return shell.decoder.forward(plan.tokens, plan.positions, Gathered(plan, cache), plan.last)

    def _shell(self, model: str) -> tuple[_Shell, KvCache]:
        shell = self._shells.get(model)
        if shell is None:
            raise BackendError(f"model {model!r} is not registered; register it first")
        cache = self._caches.get(shell.shape.key)
        if cache is None:
            raise BackendError(f"KV shape {shell.shape.key} has no blocks; bind them first")
        return shell, cache
