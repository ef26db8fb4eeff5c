"""A shell computed without its large weights: what a proof of its attention, KV cache and metadata needs of them.

A linear layer's product is replaced by one through 64 columns: every input reaches every output, each row is computed
alone, and a number that is none stays none. It reads no weight, so that pages of unwritten weights are
never made. All other parameters are real: of a shell without weights, small random numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from torch.nn.functional import pad

from aegaeon_sidecar.backends.rows import Product
from aegaeon_sidecar.backends.vllm import surface
from aegaeon_sidecar.backends.vllm.parameters import put_back, show
from aegaeon_sidecar.backends.vllm.shell import Shell

_COLUMNS = 64  # that inputs are added up in
_OUTPUTS = 97  # that are repeated: a prime, so that no head's queries are its keys
_ROWS = 64  # of an embedding that a proof's tokens read
_TILE = 1 << 16  # random numbers, of which larger parameters have many copies


@contextmanager
def sketched(shell: Shell, product: Product, bare: bool) -> Iterator[None]:
    """Linear layers are sketches, and, where the shell is `bare`, other parameters random numbers meanwhile."""
    generator = torch.Generator().manual_seed(7)
    with surface.EXCLUSIVE:
        before = show(shell.model, shell.places, zeros(shell.nbytes)) if bare else []
    try:
        with _shortened(shell), _replaced(shell, product, generator):
            if bare:
                _fill(shell.model, generator)
            yield
    finally:
        with surface.EXCLUSIVE:
            put_back(before)


@contextmanager
def _replaced(shell: Shell, product: Product, generator: torch.Generator) -> Iterator[None]:
    """Each linear layer has a sketch for its method."""
    linears = [module for module in shell.model.modules() if isinstance(module, surface.LinearBase)]
    methods = [module.quant_method for module in linears]
    for module in linears:
        module.quant_method = _Sketch(product, shell.config.model_config.dtype, generator)
    try:
        yield
    finally:
        for module, method in zip(linears, methods, strict=True):
            module.quant_method = method


def zeros(nbytes: int) -> Tensor:
    """A tensor of uint8; pages that are not written take no memory and no time."""
    return torch.frombuffer(mmap(-1, nbytes), dtype=torch.uint8)


class _Sketch:
    """A stand-in for a layer's quantisation method."""

    def __init__(self, product: Product, dtype: torch.dtype, generator: torch.Generator) -> None:
        self._product = product
        self._weight = (torch.randn(_OUTPUTS, _COLUMNS, generator=generator) / _COLUMNS**0.5).to(dtype)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Called by vLLM: float [.., layer.output_size] of float [.., inputs]."""
        rows = x.reshape(-1, x.shape[-1])
        if missing := -rows.shape[1] % _COLUMNS:
            rows = pad(rows, (0, missing))
        folded = rows.view(len(rows), -1, _COLUMNS)
        columns = self._product(folded.sum(1).div_(folded.shape[1] ** 0.5), self._weight, None)
        outputs = _repeated(columns, layer.output_size).view(*x.shape[:-1], layer.output_size)
        return outputs if bias is None else outputs.add_(bias)


def _repeated(columns: Tensor, count: int) -> Tensor:
    """[rows, count]: the columns again and again."""
    rows, width = columns.shape
    times, rest = divmod(count, width)
    outputs = columns.new_empty(rows, count)
    outputs[:, : times * width].view(rows, times, width).copy_(columns[:, None])
    outputs[:, count - rest :] = columns[:, :rest]
    return outputs


@contextmanager
def _shortened(shell: Shell) -> Iterator[None]:
    """The model's layers end behind the second of each kind, where there are more, and blocks have the pages of these.
    Those that come before one stay, since layers may know their number. Kinds differ in what attention's metadata is
    made by, and in whether they share the KV of others."""
    kept = []
    for path, modules in shell.model.named_modules():
        if isinstance(modules, ModuleList):
            count = _needed(path, len(modules), shell)
            if count < len(modules):
                owner, _, leaf = path.rpartition(".")
                kept.append((shell.model.get_submodule(owner), leaf, modules, count))
    for owner, leaf, modules, count in kept:
        setattr(owner, leaf, modules[:count])
    layers, pages = shell.layers, shell.pages
    cut = {id(inner) for *_, modules, count in kept for module in modules[count:] for inner in module.modules()}
    shell.layers = {name: layer for name, layer in layers.items() if id(layer) not in cut}
    numbers = sorted({pages[name] for name in shell.layers})
    shell.pages = {name: numbers.index(pages[name]) for name in shell.layers}
    try:
        yield
    finally:
        shell.layers, shell.pages = layers, pages
        for owner, leaf, modules, _ in kept:
            setattr(owner, leaf, modules)


def _needed(path: str, count: int, shell: Shell) -> int:
    """The number of modules, from the first on, that contain two of each kind of attention layer; all, if they have no
    attention."""
    group = {name: number for number, (names, _) in enumerate(shell.groups) for name in names}
    seen: Counter[tuple[int, bool]] = Counter()
    needed, met = 0, 0
    for name, layer in shell.layers.items():
        if not name.startswith(f"{path}."):
            continue
        met += 1
        kind = group[name], surface.shares_kv_of(layer) is not None
        seen[kind] += 1
        if seen[kind] <= 2:
            needed = int(name.removeprefix(f"{path}.").partition(".")[0]) + 1
    return needed if met >= count else count


def _fill(model: Module, generator: torch.Generator) -> None:
    """Norms, biases, embeddings and what else computes by itself."""
    tile = torch.rand(_TILE, generator=generator) + 0.5
    done: set[int] = set()
    for module in model.modules():
        if isinstance(module, surface.LinearBase):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.data_ptr() in done:
                continue
            done.add(parameter.data_ptr())
            part = parameter.data[:_ROWS] if isinstance(module, surface.VocabParallelEmbedding) else parameter.data
            _spread(part, tile)


def _spread(to: Tensor, tile: Tensor) -> None:
    """A vector is as it is in a norm; a matrix has rows of about the same length, of either sign."""
    if not to.is_floating_point():
        to.zero_()
        return
    count = to.numel()
    numbers = tile.repeat(-(-count // len(tile)))[:count].reshape(to.shape)
    to.copy_(numbers if to.dim() < 2 else (numbers - 1) * (12 / to.shape[-1]) ** 0.5)
