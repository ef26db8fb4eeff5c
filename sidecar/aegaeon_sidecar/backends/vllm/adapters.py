"""Adapters (LoRA) of one shell: its linear layers have a low-rank product beside them for the rows that want one.

vLLM's layers know which tensors are theirs and hold them, stacked by slot. Which adapter is in which slot, and which
rows it computes, is decided here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aegaeon_sidecar.backends import AdapterLimits, AdapterWeights, StepInput
from aegaeon_sidecar.backends.rows import Product, low_rank_shapes, steady_linear
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.domain.errors import BackendError, ConfigError, ModelError, WeightsError
from aegaeon_sidecar.models.adapters import lay_out_adapter, read_adapter
from aegaeon_sidecar.models.documents import MOST_CONFIG_BYTES, read_document
from aegaeon_sidecar.models.header import FileTensor
from aegaeon_sidecar.models.placement import ADAPTER_CONFIG, Layout

_OTHER_BASE = "it is an adapter of another base model"


@dataclass(slots=True)
class Rows:
    """The low-rank products that vLLM's layers call. `groups`: slots, and the rows of a step that each computes.

    No row of a product depends on the rest of its batch (`linear`). Products are of float32, as vLLM's are: in 16 bits,
    narrow matrices have kernels that no number of rows makes the same.
    """

    linear: Product
    groups: Seq[tuple[int, Tensor | slice]] = ()

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
    ) -> None:
        """Add to y [rows, outer], in place. Stacks: [slots, 1, rank, inner] and [slots, 1, outer of a slice, rank]."""
        for slot, rows in self.groups:
            part, start = x[rows].float(), 0
            for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                low = self.linear(part, a[slot, 0].float(), None)
                y[rows, start : start + width] += self.linear(low, b[slot, 0].float(), None).to(y.dtype)
                start += width


@dataclass(frozen=True, slots=True)
class _Target:
    """The place where an adapter changes a layer: inner and outer size."""

    inner: int
    outer: int


class Adapters:
    """Made when a model has its first adapter, as its layers are wrapped for it."""

    def __init__(self, config: Any, model: Any, limits: AdapterLimits, linear: Product, dtype: str) -> None:
        """`linear`: see Rows. Raises ModelError where vLLM has no adapters for the model, or its slots take more than
        `limits.nbytes`."""
        self._model, self._limits, self._dtype = model, limits, dtype
        self._settings = surface.adapter_settings(config, limits.max_rank, limits.slots)
        self._manager = surface.wrapped(config, model, self._settings)
        self._rows = Rows(linear)
        self._slots: OrderedDict[str, int] = OrderedDict()  # vLLM's number of each adapter, by its key; oldest first
        self._next = 1
        for module in self._manager.modules.values():
            module.set_mapping(self._rows)
        self._targets = _targets(self._manager)
        self.nbytes = sum(stack.nbytes for module in self._manager.modules.values() for stack in _stacks(module))
        if self.nbytes > limits.nbytes:
            self.unwrap()
            raise ModelError(
                f"{limits.slots} adapters of rank {limits.max_rank} on this model take {self.nbytes} bytes, of which "
                f"{limits.nbytes} are left for adapters; raise spec.adapters.memory of the GpuPool"
            )

    def unwrap(self) -> None:
        """The layers are as they were."""
        for name, module in self._manager.modules.items():
            parent, _, leaf = name.rpartition(".")
            setattr(self._model.get_submodule(parent), leaf, module.base_layer)

    def describe(self, directory: Path) -> Layout:
        """See Backend.describe_adapter."""
        helper = self._helper(_settings(directory))
        pairs: dict[str, dict[bool, FileTensor]] = {}
        tensors = read_adapter(directory)
        for name, tensor in tensors.items():
            module, is_a = self._parsed(name)
            pairs.setdefault(module, {})[is_a] = tensor
            rank, _ = helper.get_rank_and_scaling(surface.adapter_module(name, None)[0])
            self._check(tensor, module, is_a, rank)
        if not pairs:
            raise WeightsError(f"{directory}: it changes no layer")
        for module, pair in pairs.items():
            if len(pair) != 2:
                raise WeightsError(f"{directory}: {module} has one of its two matrices; the file is not whole")
        return lay_out_adapter(directory, tensors.values(), self._dtype)

    def _helper(self, settings: bytes) -> Any:
        """Raises ConfigError for what vLLM does not compute."""
        try:
            return surface.adapter_helper(settings, self._settings)
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            raise ConfigError(f"{ADAPTER_CONFIG}: {' '.join(str(error).split()):.300}") from error

    def _parsed(self, name: str) -> tuple[str, bool]:
        """The layer that a tensor belongs to, as vLLM names it, and whether it is its first matrix."""
        try:
            module, is_a = surface.adapter_module(name, surface.renames(self._model))
        except ValueError as error:
            raise WeightsError(
                f"{name}: is no matrix of an adapter of linear layers, which alone are served"
            ) from error
        return module, is_a

    def _check(self, tensor: FileTensor, module: str, is_a: bool, rank: int) -> None:
        target = self._targets.get(module)
        if target is None:
            raise WeightsError(f"{tensor.name}: the model has no such linear layer; {_OTHER_BASE}, or for other layers")
        expected = (rank, target.inner) if is_a else (target.outer, rank)
        if tensor.shape != expected:
            raise WeightsError(
                f"{tensor.name}: shape {list(tensor.shape)}, must be {list(expected)}; its config is of another file, "
                f"or {_OTHER_BASE}"
            )

    def parts(self, inputs: Seq[StepInput]) -> list[list[int]]:
        """The inputs' numbers in as many steps as their adapters need, which is one where there are slots for all."""
        parts: list[list[int]] = []
        keys: list[set[str]] = []
        for number, part in enumerate(inputs):
            key = {part.adapter.key} if part.adapter is not None else set()
            at = next((i for i, some in enumerate(keys) if len(some | key) <= self._limits.slots), len(parts))
            if at == len(parts):
                parts.append([])
                keys.append(set())
            parts[at].append(number)
            keys[at] |= key
        return parts

    def select(self, inputs: Seq[StepInput]) -> None:
        """Adapters into slots, those used longest ago making room; the next step computes these rows with them.

        Raises BackendError where there are more than slots, and what vLLM raises.
        """
        needed = {part.adapter.key: part.adapter for part in inputs if part.adapter is not None}
        if len(needed) > self._limits.slots:
            raise BackendError(f"a step of {len(needed)} adapters, and there are {self._limits.slots} slots")
        for key in needed:
            if key in self._slots:
                self._slots.move_to_end(key)
        slots = {key: self._slot(weights) for key, weights in needed.items()}
        rows: dict[int, list[int]] = {}
        start = 0
        for part in inputs:
            count = 1 if part.follows is not None else len(part.tokens)
            if part.adapter is not None:
                rows.setdefault(slots[part.adapter.key], []).extend(range(start, start + count))
            start += count
        self._rows.groups = [(slot, _indices(some)) for slot, some in rows.items()]

    def _slot(self, weights: AdapterWeights) -> int:
        if weights.key not in self._slots:
            self._load(weights)
        return int(self._manager.lora_index_to_id.index(self._slots[weights.key]))

    def _load(self, weights: AdapterWeights) -> None:
        if len(self._slots) >= self._limits.slots:
            self._manager.remove_adapter(self._slots.popitem(last=False)[1])
        number, self._next = self._next, self._next + 1
        try:
            surface.fill_slot(self._manager, number, _tensors(weights), self._helper(weights.settings), self._settings)
        except BaseException:
            self._manager.remove_adapter(number)
            raise
        self._slots[weights.key] = number


def _indices(rows: list[int]) -> Tensor | slice:
    """The indices of a group: neighbouring rows need no copy."""
    first, end = rows[0], rows[-1] + 1
    return slice(first, end) if end - first == len(rows) else torch.tensor(rows)


def adapter_linear(rank: int) -> Product:
    """The product of Rows for adapters of this rank. Its tile is probed, for up to seconds."""
    return steady_linear(torch.float32, torch.get_num_threads(), low_rank_shapes(rank))


def _settings(directory: Path) -> bytes:
    try:
        return read_document(directory / ADAPTER_CONFIG, MOST_CONFIG_BYTES)
    except OSError as error:
        raise ConfigError(f"{directory / ADAPTER_CONFIG}: cannot be read: {error.strerror}") from error


def _tensors(weights: AdapterWeights) -> Mapping[str, Tensor]:
    """Copies, which vLLM scales and then copies into its stacks."""
    layout = weights.layout
    dtype, plan = getattr(torch, layout.dtype), layout.plan or {}
    tensors: dict[str, Tensor] = {}
    for place in layout.tensors:
        raw = torch.from_numpy(np.array(weights.image[place.offset : place.offset + place.nbytes]))
        tensors[place.name] = raw.view(dtype).reshape(plan[place.name].shape)
    return tensors


def _targets(manager: Any) -> dict[str, _Target]:
    """The layers by the names that adapters use: a fused layer under the names of its parts."""
    targets: dict[str, _Target] = {}
    for name, module in manager.modules.items():
        parts = manager.packed_modules.get(name, [name])
        if len(parts) != len(module.lora_a_stacked):
            continue
        for part, a, b in zip(parts, module.lora_a_stacked, module.lora_b_stacked, strict=True):
            targets[part] = _Target(a.shape[-1], b.shape[-2])
    return targets


def _stacks(module: Any) -> tuple[Tensor, ...]:
    return (*module.lora_a_stacked, *module.lora_b_stacked)
