"""Parameters as views of a model's range: built once, right whenever the model's bytes are in the range.

Nothing here reads a weight, so a shell can be made while no memory is mapped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aegaeon_sidecar.backends.rows import Product
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.tensors import Shape


class Linear:
    """x [n, in] -> [n, sum of out] through one or several matrices side by side (q, k, v or gate, up).

    Neighbours without a gap between them are spanned by one view and cost one multiplication.
    """

    def __init__(self, weights: list[Tensor], biases: list[Tensor], linear: Product) -> None:
        self._linear = linear
        weight, bias = span(weights), span(biases)
        self._parts: list[tuple[Tensor, Tensor | None]]
        if weight is not None and (bias is not None or not biases):
            self._parts = [(weight, bias)]
        else:
            self._parts = [(weight, biases[i] if biases else None) for i, weight in enumerate(weights)]

    def __call__(self, x: Tensor) -> Tensor:
        if len(self._parts) == 1:
            weight, bias = self._parts[0]
            return self._linear(x, weight, bias)
        parts = [self._linear(x, weight, bias) for weight, bias in self._parts]
        return torch.cat(parts, dim=-1)


class Parameters:
    """The tensors of one model by name, views of `memory` (uint8). `linear`: how they are multiplied."""

    def __init__(
        self, layout: Layout, shapes: dict[str, Shape], dtype: torch.dtype, memory: Tensor, linear: Product
    ) -> None:
        self._linear = linear
        self._tensors = {
            place.name: memory[place.offset : place.offset + place.nbytes].view(dtype).view(shapes[place.name])
            for place in layout.tensors
        }

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def linear(self, *names: str) -> Linear:
        """The matrices `names` side by side, with their biases where the model has them."""
        weights = [self._tensors[f"{name}.weight"] for name in names]
        biases = [self._tensors[f"{name}.bias"] for name in names if f"{name}.bias" in self._tensors]
        return Linear(weights, biases, self._linear)


def span(parts: list[Tensor]) -> Tensor | None:
    """One view over tensors that follow each other in memory, stacked by rows; None if they do not."""
    if not parts:
        return None
    end = parts[0].data_ptr()
    for part in parts:
        if part.data_ptr() != end:
            return None
        end += part.nbytes
    rows = sum(part.shape[0] for part in parts)
    return parts[0].as_strided((rows, *parts[0].shape[1:]), parts[0].stride())
