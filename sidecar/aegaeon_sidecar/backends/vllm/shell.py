"""A shell: one of vLLM's models whose parameters and KV cache are views of memory that is not its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from aegaeon_proto.pooling import Purpose
from aegaeon_sidecar.backends.decodes import Decodes
from aegaeon_sidecar.backends.rows import Product
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.backends.vllm.adapters import Adapters
from aegaeon_sidecar.backends.vllm.batch import Batch
from aegaeon_sidecar.backends.vllm.exclusive import Building
from aegaeon_sidecar.backends.vllm.parameters import Place, hollow_parameters, place_parameters
from aegaeon_sidecar.backends.vllm.refusals import check_caches, check_heads, reason_of
from aegaeon_sidecar.backends.vllm.rehearsal import (
    NotPlacedError,
    Rehearsal,
    hollow_tensors,
    mean_piece_bytes,
    plan_of,
)
from aegaeon_sidecar.domain.errors import ModelError, WeightsError
from aegaeon_sidecar.models.header import FileTensor
from aegaeon_sidecar.models.runs import Runs, nowhere

LEAST_PIECE_BYTES = 64  # below it a load would spend its time on pieces: a loader that transposes matrices


@dataclass(slots=True)
class Shell:
    """`groups`: layers of one kind of attention, by name, and what makes their kernels' metadata.

    `pages`: which page of a block each layer reads and writes: one of its own, or that of the layer whose KV it shares.
    `page_bytes`: of one layer in one block; `capacity`: blocks of the memory that is bound; `purpose` says which head
    the model has; `adapters`: None before it has its first; `batch`: of the last step;
    `decodes`: where they are of one shape, once there was one.
    """

    config: Any
    model: Any
    places: list[Place]
    nbytes: int
    layers: dict[str, Any] = field(default_factory=dict)
    specs: dict[str, Any] = field(default_factory=dict)
    groups: list[tuple[list[str], Any]] = field(default_factory=list)
    pages: dict[str, int] = field(default_factory=dict)
    block_tokens: int = 0
    page_bytes: int = 0
    capacity: int = 0
    blocks: Tensor | None = None
    adapters: Adapters | None = None
    batch: Batch | None = None
    decodes: Decodes | None = None
    purpose: Purpose = surface.GENERATES

    @property
    def block_bytes(self) -> int:
        return self.page_bytes * self.page_count

    @property
    def page_count(self) -> int:
        """The number of pages of a block."""
        return len(set(self.pages.values()))

    @property
    def keeps_metadata(self) -> bool:
        """True when metadata of a step of decodes can be reused by later steps: its kernels read lengths and blocks
        when they run. With builders that copy them, such as that of chunked attention, later steps could read blocks of
        other sequences."""
        return all(type(builder) is surface.LiveMetadataBuilder for _, builder in self.groups)

    @property
    def attention(self) -> str:
        """vLLM's name of the backend of its first layer."""
        return str(next(iter(self.layers.values())).get_attn_backend().get_name())


def planned(config: Any, files: Mapping[str, FileTensor], dtype: torch.dtype) -> tuple[Shell, dict[str, Runs]]:
    """A shell without memory, and where the items of the files go. Raises NotPlacedError when they are not all of it,
    and whatever vLLM raises where a loader needs bytes."""
    model = surface.initialized(config, hollow_parameters)
    storages = [place.storage for place in place_parameters(model)[0]]
    tensors = hollow_tensors(files)
    rehearsal = Rehearsal(tensors, storages)
    with rehearsal:
        loaded = surface.loaded(config, model, tensors.items(), hollow_parameters)
    surface.processed(config, model, hollow_parameters)
    _check_loaded(model, loaded)
    if rehearsal.reason:
        raise NotPlacedError(rehearsal.reason)
    places, nbytes = place_parameters(model)
    plan = plan_of(rehearsal.moves, places, files, dtype)
    if mean_piece_bytes(plan) < LEAST_PIECE_BYTES:
        raise NotPlacedError("its loader transposes matrices")
    return _completed(config, model, places, nbytes), plan


def baked(config: Any, files: Mapping[str, FileTensor]) -> tuple[Shell, dict[str, Runs]]:
    """A shell whose parameters vLLM has loaded and transformed, in memory of its own. Raises WeightsError."""
    model = surface.initialized(config)
    try:
        loaded = surface.loaded(config, model, _read(files))
    except (AssertionError, LookupError, RuntimeError) as error:  # sizes that differ are found by torch
        raise WeightsError(f"its files are not what config.json says; {reason_of(error)}") from error
    _check_loaded(model, loaded)
    surface.processed(config, model)
    places, nbytes = place_parameters(model)
    plan = {name: nowhere(tensor.shape, tensor.dtype) for name, tensor in files.items()}
    return _completed(config, model, places, nbytes), plan


def image_of(shell: Shell) -> Tensor:
    """A copy of the bytes of its parameters, each storage at its place."""
    image = torch.zeros(shell.nbytes, dtype=torch.uint8)
    for place in shell.places:
        storage = torch.empty(0, dtype=torch.uint8).set_(place.storage)[: place.nbytes]
        image[place.offset : place.offset + place.nbytes] = storage
    return image


def let_go(shell: Shell) -> None:
    """The memory that its parameters had first: they are views of other memory."""
    for place in shell.places:
        place.storage = torch.empty(0, dtype=torch.uint8).untyped_storage()


def _read(files: Mapping[str, FileTensor]) -> surface.Weights:
    """The tensors of the files, one in memory at a time."""
    opened: dict[Path, Any] = {}
    for name, tensor in files.items():
        if tensor.file not in opened:
            opened[tensor.file] = safe_open(tensor.file, "pt")
        yield name, opened[tensor.file].get_tensor(name)


def _check_loaded(model: Any, loaded: set[str] | None) -> None:
    """Raises NotPlacedError: vLLM's loaders name what they have written, and what they have not is noise."""
    if loaded is None:
        return
    missing = {name for name, _ in model.named_parameters()} - loaded
    written = {id(parameter) for name, parameter in model.named_parameters() if name in loaded}
    for name, parameter in model.named_parameters():
        if name in missing and id(parameter) not in written and not _is_made(name):
            raise NotPlacedError(f"{name} is not in the files")


def _is_made(name: str) -> bool:
    """Scales of quantisation have a default where the files have none, as in vLLM."""
    return name.endswith(("_scale", "_zero_point", "g_idx", "g_idx_sort_indices", "workspace"))


def _completed(config: Any, model: Any, places: list[Place], nbytes: int) -> Shell:
    """The shell with everything that a step needs beside the model. Raises ModelError when its KV cache is not blocks
    of equal layers."""
    shell = Shell(config, model.eval(), places, nbytes, surface.attention_layers(config))
    with Building(partial(surface.configured, config)):
        shell.specs = {name: layer.get_kv_cache_spec(config) for name, layer in shell.layers.items()}
        spec = check_caches(shell.specs)
        shell.pages = _pages(shell.layers)
        shell.block_tokens, shell.page_bytes = spec.block_size, spec.page_size_bytes
        kinds: dict[tuple[str, Any], list[str]] = {}
        for name, layer in shell.layers.items():
            check_heads(layer, shell.specs[name])
            kinds.setdefault((layer.get_attn_backend().full_cls_name(), shell.specs[name]), []).append(name)
        for (_, kind), names in kinds.items():
            builder = shell.layers[names[0]].get_attn_backend().get_builder_cls()
            shell.groups.append((names, builder(kind, names, config, torch.device(config.device_config.device))))
    return shell


def _pages(layers: Mapping[str, Any]) -> dict[str, int]:
    """Page numbers by the name of the layer. Raises ModelError for a layer that shares the KV cache of a missing
    one."""
    shared = {name: surface.shares_kv_of(layer) for name, layer in layers.items()}
    own = (name for name, target in shared.items() if target is None)
    pages = {name: number for number, name in enumerate(own)}
    for name, target in shared.items():
        if target is not None and target not in pages:
            raise ModelError(f"{name} shares the KV cache of {target}, which has none of its own")
    return {name: pages[target or name] for name, target in shared.items()}


def multiply_by(shell: Shell, product: Product) -> None:
    """Linears compute with this product, no row of which depends on how many others there are."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(x.reshape(-1, x.shape[-1]), weight, bias).reshape(*x.shape[:-1], len(weight))

    for module in shell.model.modules():
        if hasattr(module, "cpu_linear"):
            module.cpu_linear = linear


def bind_kv(shell: Shell, memory: Tensor) -> None:
    """Each layer's cache is its page of blocks that hold those of all. No byte of `memory` (uint8) is touched."""
    shell.decodes = None
    shell.capacity = len(memory) // shell.block_bytes
    shell.blocks = memory[: shell.capacity * shell.block_bytes].view(shell.capacity, -1)
    raw = memory[: shell.capacity * shell.block_bytes]
    for name, layer in shell.layers.items():
        offset = shell.pages[name] * shell.page_bytes
        view = surface.cache_view(raw, layer, shell.specs[name], shell.capacity, shell.block_bytes, offset)
        layer.bind_kv_cache(view)
