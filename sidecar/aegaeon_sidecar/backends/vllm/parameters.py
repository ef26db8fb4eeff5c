"""A model's parameters as bytes of one range: their layout, shells without memory, and views of the range."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

ALIGNMENT = 256
_DEPTH = 4  # of vLLM's objects below a module: its quantisation method, that one's kernel, what the kernel holds


@dataclass(frozen=True, slots=True)
class View:
    """One parameter: its module and name there, and where in its storage it lies."""

    module: str
    leaf: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    first: int

    @property
    def name(self) -> str:
        return f"{self.module}.{self.leaf}" if self.module else self.leaf


@dataclass(slots=True)
class Place:
    """One storage and the parameters that view it: more than one where weights are tied."""

    storage: torch.UntypedStorage
    offset: int
    nbytes: int
    views: list[View] = field(default_factory=list)


@contextmanager
def hollow_parameters() -> Iterator[None]:
    """Parameters are made without memory (meta); buffers, and what modules compute for themselves, are real.

    It holds for the whole process.
    """
    real = Parameter.__new__

    def hollow(cls: type[Parameter], data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        return real(cls, data if data is None else data.to("meta"), requires_grad)

    type.__setattr__(Parameter, "__new__", hollow)
    try:
        yield
    finally:
        type.__setattr__(Parameter, "__new__", real)


def place_parameters(model: Module) -> tuple[list[Place], int]:
    """Bump allocation over the distinct storages of parameters: their places, and the bytes of all."""
    places: dict[int, Place] = {}
    end = 0
    for name, module in model.named_modules(remove_duplicate=False):
        for leaf, parameter in module._parameters.items():
            if parameter is None:
                continue
            storage = parameter.untyped_storage()
            place = places.get(storage._cdata)
            if place is None:
                place = places[storage._cdata] = Place(storage, end, storage.nbytes())
                end += -(-place.nbytes // ALIGNMENT) * ALIGNMENT
            shape, stride, first = tuple(parameter.shape), parameter.stride(), int(parameter.storage_offset())
            place.views.append(View(name, leaf, parameter.dtype, shape, stride, first))
    return list(places.values()), end


Shown = list[tuple[Any, str, Any]]
"""What had a parameter, as a dictionary or as an attribute, by which name, and which."""


def show(model: Module, places: list[Place], memory: Tensor) -> Shown:
    """Parameters are views of `memory` (uint8) from here on; returns what they were. No byte is touched."""
    modules = dict(model.named_modules(remove_duplicate=False))
    replaced: dict[int, Parameter] = {}
    before: Shown = []  # so that no other object gets the id of one that is replaced, either
    for place in places:
        views: dict[tuple[Any, ...], Parameter] = {}
        for view in place.views:
            key = (view.dtype, view.shape, view.stride, view.first)
            if key not in views:
                raw = memory[place.offset : place.offset + place.nbytes].view(view.dtype)
                shown = raw.as_strided(view.shape, view.stride, raw.storage_offset() + view.first)
                views[key] = Parameter(shown, requires_grad=False)
            parameters = modules[view.module]._parameters
            before.append((parameters, view.leaf, parameters[view.leaf]))
            replaced[id(parameters[view.leaf])] = views[key]
            parameters[view.leaf] = views[key]
    for owner in _objects(model):
        for name, value in list(vars(owner).items()):
            if id(value) in replaced:
                before.append((owner, name, value))
                setattr(owner, name, replaced[id(value)])  # attention keeps its module's sinks, for example
    return before


def put_back(before: Shown) -> None:
    """Restore the state before `show`."""
    for owner, name, value in before:
        if isinstance(owner, dict):
            owner[name] = value
        else:
            setattr(owner, name, value)


def _objects(model: Module) -> Iterator[Any]:
    """The modules and vLLM's plain objects that hang on them."""
    seen: set[int] = set()
    pending: list[tuple[int, Any]] = [(0, module) for module in model.modules()]
    while pending:
        depth, owner = pending.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        yield owner
        below = (value for name, value in vars(owner).items() if not name.endswith("config"))
        pending += [(depth + 1, value) for value in below if depth < _DEPTH and _is_plain(value)]


def _is_plain(value: Any) -> bool:
    known = type(value).__module__.startswith(("vllm.model_executor", "vllm.v1.attention"))
    return known and hasattr(value, "__dict__") and not isinstance(value, Module | Tensor | type)
