"""Weights from files into the image that a model's range holds, converted on the way: after this, Load is one copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from aegaeon_sidecar.backends import Layout, TensorPlace
from aegaeon_sidecar.errors import FillCancelledError, WeightsError
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.files import find_tensors
from aegaeon_sidecar.models.header import ITEM_BYTES, FileTensor
from aegaeon_sidecar.models.layout import ENGINE_DTYPES, KvShape

CHUNK_BYTES = 8 << 20  # between two looks at `cancelled`; a multiple of every item size
FILE_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Progress = Callable[[int, int], None]


def fill(
    directory: Path,
    layout: Layout,
    destination: NDArray[np.uint8],
    progress: Progress = lambda done, total: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Write every tensor at its place in `destination` (uint8, at least layout.weight_bytes), padding zeroed.

    `progress(done, total)` in bytes of the image, and `cancelled()` is asked, every few MiB. Raises FillCancelledError,
    or WeightsError when the files changed since `layout` was made. A tensor in the engine's dtype is read straight into
    its place; another is converted (round to nearest even) through one buffer of a few MiB.
    """
    if destination.nbytes < layout.weight_bytes:
        raise WeightsError(f"{directory}: the image needs {layout.weight_bytes} bytes, {destination.nbytes} were given")
    tensors = find_tensors(directory, read_spec(directory))
    writer = _Writer(KvShape.parse(layout.kv_shape).dtype, layout.weight_bytes, progress, cancelled)
    end = 0
    for place in layout.tensors:
        destination[end : place.offset] = 0
        end = place.offset + place.nbytes
        writer.write(place, tensors.get(place.name), destination[place.offset : end])
    destination[end : layout.weight_bytes] = 0
    progress(layout.weight_bytes, layout.weight_bytes)


class _Writer:
    def __init__(self, dtype: str, total: int, progress: Progress, cancelled: Callable[[], bool]) -> None:
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._item = ENGINE_DTYPES[dtype]
        self._total = total
        self._progress = progress
        self._cancelled = cancelled

    def write(self, place: TensorPlace, tensor: FileTensor | None, target: NDArray[np.uint8]) -> None:
        if tensor is None or tensor.nbytes // ITEM_BYTES[tensor.dtype] != place.nbytes // self._item:
            raise WeightsError(f"{place.name}: the files changed since the model was laid out; describe it again")
        same = FILE_DTYPES[tensor.dtype] == self._dtype
        with tensor.file.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), tensor.offset, tensor.nbytes, os.POSIX_FADV_SEQUENTIAL)
            file.seek(tensor.offset)
            for start in range(0, tensor.nbytes, CHUNK_BYTES):
                if self._cancelled():
                    raise FillCancelledError(f"{tensor.file}: reading was cancelled")
                count = min(CHUNK_BYTES, tensor.nbytes - start)
                begin = start // ITEM_BYTES[tensor.dtype] * self._item
                chunk = target[begin : begin + count // ITEM_BYTES[tensor.dtype] * self._item]
                if same:
                    _read_exactly(tensor, file.readinto, chunk.data)
                else:
                    self._convert(tensor, file.readinto, chunk, count)
                self._progress(place.offset + begin + chunk.nbytes, self._total)

    def _convert(
        self, tensor: FileTensor, readinto: Callable[[memoryview], int | None], target: NDArray[np.uint8], count: int
    ) -> None:
        raw = np.empty(count, dtype=np.uint8)
        _read_exactly(tensor, readinto, raw.data)
        source = torch.from_numpy(raw).view(FILE_DTYPES[tensor.dtype])
        torch.from_numpy(target).view(self._dtype).copy_(source)


def _read_exactly(tensor: FileTensor, readinto: Callable[[memoryview], int | None], target: memoryview) -> None:
    done = 0
    while done < len(target):
        count = readinto(target[done:])
        if not count:
            raise WeightsError(f"{tensor.file}: {tensor.name}: the file ends early; it was changed while being read")
        done += count
