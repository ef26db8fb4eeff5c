"""The torch backend: shells by model name, caches by KV shape, and `launch`.

Parameters and KV are views of addresses that never change; the caller ensures that a model's bytes are present.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.dlpack import from_dlpack

from aegaeon_native.arrays import DeviceBytes
from aegaeon_sidecar.backends import MAX_GRAPHS, Launched, StepInput
from aegaeon_sidecar.backends.completed import CompletedStep, chosen_rows, wanted_rows
from aegaeon_sidecar.backends.decodes import CAPTURED, ROWS, Decodes
from aegaeon_sidecar.backends.device import drain, drained_on_error, on, open_devices, recorded
from aegaeon_sidecar.backends.draws import FOLLOWED, on_device
from aegaeon_sidecar.backends.graphs import Capture, Graphs, cuda_graphs
from aegaeon_sidecar.backends.passes import Passes, Room
from aegaeon_sidecar.backends.rows import Product, has_native_product, padded_linear, row_tile, steady_product
from aegaeon_sidecar.backends.torch.attention import Gathered, prepare
from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.decoder import Decoder, Part, RankInput
from aegaeon_sidecar.backends.torch.parameters import Parameters
from aegaeon_sidecar.backends.torch.step_layout import LayoutBuilder
from aegaeon_sidecar.domain.errors import BackendError, ModelError
from aegaeon_sidecar.models.config import DecoderSpec, read_spec
from aegaeon_sidecar.models.layout import ENGINE_DTYPES, KvShape, kv_shape, lay_out, place_tensors
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.sharding import part_of
from aegaeon_sidecar.models.tensors import tensor_shapes
from aegaeon_sidecar.sampling import Chosen, Masker, SamplerState


@dataclass(slots=True)
class _Shell:
    """`builders`: of each rank; `decodes`: made at the first decode, where decodes are paged."""

    decoder: Decoder
    builders: tuple[LayoutBuilder, ...]
    shape: KvShape
    max_model_len: int
    decodes: Decodes | None = None


def configure_threads(threads: int) -> None:
    """Set the number of threads of torch. A setting of the whole process: call it once, at its start."""
    torch.set_num_threads(threads)


class TorchBackend:
    """Implements backends.Backend. `dtype`: float32, float16 or bfloat16; `block_tokens`: tokens in a KV block.

    Not thread-safe for one model; different models may step from different threads unless it is `paged`: decodes share
    buffers. With the same batch composition (tokens, positions) a step gives bitwise the same logits, wherever the
    blocks lie. With `batch_invariant` (default) also whatever the rest of the batch is, if the products of this machine
    allow it (see `rows`): it costs nothing in float32 with one thread, else up to three times a matrix-vector product
    for one sequence alone.

    `paged`: decodes run at one fixed shape over the blocks where they lie (see `decodes`), which is how a GPU's are
    batch-invariant, and may be launched before the tokens of the step before are known to the host; None: on a GPU.
    Elsewhere it needs Triton's interpreter.

    `ranks`: devices that share every model, from `device` on. They take their steps together, from one thread.

    `max_graphs`: decodes, of all models together, that a GPU keeps captured.
    """

    def __init__(
        self,
        *,
        device: str = "cpu",
        ranks: int = 1,
        dtype: str = "float32",
        block_tokens: int = 16,
        batch_invariant: bool = True,
        paged: bool | None = None,
        max_graphs: int = MAX_GRAPHS,
    ) -> None:
        if dtype not in ENGINE_DTYPES:
            raise BackendError(f"dtype is {dtype!r}; allowed: {', '.join(ENGINE_DTYPES)}")
        self._devices = open_devices(device, ranks)
        self._device = self._devices[0]
        prepare(self._device)
        self._paged = self._device.type == "cuda" if paged is None else paged
        self._dtype_name = dtype
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._block_tokens = block_tokens
        self._wants_invariance = batch_invariant
        self._shells: dict[str, _Shell] = {}
        self._caches: dict[str, tuple[KvCache, ...]] = {}
        self._masker = Masker(on_host=self._device.type == "cpu")
        self._max_graphs = max_graphs
        self._passes: Passes | None = None

    @property
    def row_tile(self) -> int:
        """The multiple that batches are padded to, so that rows do not depend on each other; 0 when they may."""
        if self._paged:
            return 1  # decodes have one shape, and a prefill is one sequence's
        return row_tile(self._dtype, torch.get_num_threads(), self._product) if self._wants_invariance else 0

    @property
    def _product(self) -> Product:
        """torch's own, whose sums in bfloat16 depend on the number of rows, or what is quicker for few rows. In float32
        not oneDNN's: it would keep a kernel for each number of rows, and a prompt may have any."""
        steady, threads = self._wants_invariance and not self._paged, torch.get_num_threads()
        if steady and (self._dtype is torch.bfloat16 or has_native_product(self._dtype, threads)):
            return steady_product(self._dtype, threads)
        return linear

    @property
    def _linear(self) -> Product:
        """Products whose rows do not depend on the others, where that is wanted."""
        return partial(padded_linear, tile=self.row_tile or 1, product=self._product)

    def describe(self, directory: Path, max_model_len: int, task: str = "") -> Layout:
        """See Backend."""
        return lay_out(directory, max_model_len, self._dtype_name, self._block_tokens, len(self._devices), task)

    def register(self, model: str, directory: Path, layout: Layout, *weights: DeviceBytes) -> None:
        """See Backend. Touches no byte of `weights`. Raises BackendError when layout and directory disagree."""
        spec = read_spec(directory, layout.task.value)
        part = part_of(spec, len(self._devices), directory)
        shape = kv_shape(part, self._dtype_name, self._block_tokens)
        if layout.tensors != place_tensors(part, self._dtype_name) or layout.kv_shape != shape.key:
            raise BackendError(f"{directory}: changed since it was described, or described by another backend")
        memories = [from_dlpack(memory) for memory in weights]
        if len(memories) != len(self._devices) or any(len(memory) < layout.weight_bytes for memory in memories):
            sizes = [len(memory) for memory in memories]
            raise BackendError(
                f"{model}: its ranges have {sizes} bytes, {layout.weight_bytes} are needed on each of "
                f"{len(self._devices)} ranks"
            )
        with torch.inference_mode():
            parts = [self._part(part, layout, memory, rank) for rank, memory in enumerate(memories)]
        builders = [
            LayoutBuilder(shape, spec.windows, spec.vocab_size, device, invariant=self.row_tile > 0)
            for device in self._devices
        ]
        self._shells[model] = _Shell(Decoder(spec, parts), tuple(builders), shape, layout.max_model_len)

    def _part(self, part: DecoderSpec, layout: Layout, memory: Tensor, rank: int) -> Part:
        parameters = Parameters(layout, tensor_shapes(part), self._dtype, memory, self._linear)
        return Part(part, parameters, self._dtype, rank, len(self._devices))

    def describe_adapter(self, model: str, directory: Path) -> Layout:
        """See Backend: it has none."""
        raise ModelError("backend torch computes models without adapters; adapters need backend vllm")

    def bind_kv(self, kv_shape: str, *blocks: DeviceBytes) -> None:
        """See Backend. Touches no byte of `blocks`."""
        self._caches[kv_shape] = tuple(KvCache(KvShape.parse(kv_shape), each) for each in blocks)

    def forget(self, model: str) -> None:
        """See Backend. Unknown names are fine."""
        self._shells.pop(model, None)

    def launch(self, model: str, inputs: Seq[StepInput], after: Launched | None = None) -> Launched:
        """See Backend. Reads the samplers and changes none: the caller accepts the tokens that it keeps.

        Decodes of a `paged` backend are under way when it returns, and so is what chooses no token on a GPU; everything
        else is over. So it is when this raises.
        """
        if after is None and any(part.follows is not None for part in inputs):
            raise BackendError("an input follows a step that was not launched")
        with torch.inference_mode(), on(self._device), drained_on_error(self._devices):
            if self._decodes_paged(model, inputs):
                return self._decodes(model).launch(inputs, after)
            return self._completed(model, inputs)

    def _completed(self, model: str, inputs: Seq[StepInput]) -> CompletedStep:
        selected = wanted_rows(inputs)
        samplers = [part.sampler for part in inputs if part.sampler is not None]
        with self._masker.beside(samplers, self._vocab_size(model)) as masks:
            logits = self._forward(model, inputs, selected)
        return CompletedStep(chosen_rows(logits, inputs, masks()), recorded(self._device))

    def again(self, model: str, before: Launched) -> Launched | None:
        """See Backend: every step is made of its inputs."""
        return None

    @property
    def captured(self) -> tuple[int, ...]:
        """See Backend."""
        return CAPTURED if self._paged else ()

    def may_follow(self, samplers: Seq[SamplerState | None]) -> bool:
        """See Backend: where tokens stay on the device, and no rule of choosing depends on those before.

        A constraint does, but it is applied to logits that are there already, when the tokens before them are known.
        """
        return self._paged and len(samplers) <= FOLLOWED and all(s is None or on_device(s) for s in samplers)

    def step(self, model: str, inputs: Seq[StepInput]) -> list[Chosen]:
        """A forward pass that is waited for."""
        return self.launch(model, inputs).results()

    def logits(self, model: str, inputs: Seq[StepInput]) -> Tensor:
        """A step without sampling: the output after each input's last token, float32 [inputs, outputs]."""
        with torch.inference_mode(), on(self._device):
            if inputs and self._decodes_paged(model, inputs):
                return self._decodes(model).logits(inputs)
            return self._forward(model, inputs, range(len(inputs)))

    def _decodes_paged(self, model: str, inputs: Seq[StepInput]) -> bool:
        """A prompt of one token is no decode where the model generates nothing."""
        if not self._paged or self._shell(model)[0].decoder.spec.purpose.pools:
            return False
        return all(part.is_decode for part in inputs)

    def _decodes(self, model: str) -> Decodes:
        from aegaeon_sidecar.backends.torch.decodes import PagedModel  # needs Triton

        shell, caches = self._shell(model)
        if shell.decodes is None:
            fixed = PagedModel(shell.decoder, caches, self._devices, shell.max_model_len)
            shell.decodes = Decodes(fixed, shell.max_model_len, self._shared(), self._masker)
        return shell.decodes

    def _shared(self) -> Passes:
        """The shared passes, with room for all registered models: enlarging them later costs every graph."""
        if self._passes is None:
            capture = self._capture()
            graphs = None if capture is None else Graphs(capture, self._max_graphs, partial(drain, self._device))
            self._passes = Passes(self._device, graphs)
        room = Room()
        for shell in list(self._shells.values()):  # the fetcher's thread adds to them
            spec = shell.decoder.spec
            if not spec.purpose.pools:
                room |= Room(ROWS[-1], -(-shell.max_model_len // self._block_tokens), spec.vocab_size)
        self._passes.fit(room)
        return self._passes

    def _capture(self) -> Capture | None:
        """One rank's decodes are captured on a GPU; those of several, which span devices, run eagerly, as on a CPU."""
        return cuda_graphs(self._device) if self._device.type == "cuda" and len(self._devices) == 1 else None

    def _forward(self, model: str, inputs: Seq[StepInput], selected: Seq[int] | None) -> Tensor:
        """Logits after the last token of the `selected` inputs; None: after each token of the only input."""
        shell, caches = self._shell(model)
        if not inputs:
            return torch.empty(0, shell.decoder.spec.outputs)
        rank_inputs = []
        for builder, cache in zip(shell.builders, caches, strict=True):
            step = builder.build(inputs, selected or (), cache.capacity)
            if step.fresh is not None:
                cache.blocks.index_fill_(0, step.fresh, 0.0)
            last = None if selected is None else step.last
            rank_inputs.append(RankInput(step.tokens, step.positions, Gathered(step, cache), last))
        return shell.decoder.forward(rank_inputs)

    def _vocab_size(self, model: str) -> int:
        return self._shell(model)[0].decoder.spec.vocab_size

    def _shell(self, model: str) -> tuple[_Shell, tuple[KvCache, ...]]:
        shell = self._shells.get(model)
        if shell is None:
            raise BackendError(f"model {model!r} is not registered; register it first")
        caches = self._caches.get(shell.shape.key)
        if caches is None:
            raise BackendError(f"KV shape {shell.shape.key} has no blocks; bind them first")
        return shell, caches
