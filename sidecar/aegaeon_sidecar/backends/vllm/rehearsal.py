"""vLLM's own loader run over tensors without bytes: which items of which file tensor go where in the image.

Every copy into a parameter is noted, so that fused, tied and padded tensors need no code of ours. A loader that does
more than place items is recognised by it, and its image has to be baked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from aegaeon_sidecar.backends.vllm.parameters import Place
from aegaeon_sidecar.domain.errors import ModelError, WeightsError
from aegaeon_sidecar.models.header import FLOATS, FileTensor
from aegaeon_sidecar.models.runs import Runs, nowhere

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U32": torch.uint32,
    "U64": torch.uint64,
}
_COPY = torch.ops.aten.copy_.default
_ZEROS = (torch.ops.aten.zero_.default, torch.ops.aten.fill_.Scalar)  # what pads a vocabulary; an image begins as zeros


class NotPlacedError(Exception):
    """The image is more than the files' items in other places; the message says which step shows it."""


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of items of a file tensor to a storage of parameters. Offsets and strides in items."""

    source: str
    source_offset: int
    source_stride: tuple[int, ...]
    target: int
    target_offset: int
    target_stride: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype


class Rehearsal(TorchDispatchMode):
    """Notes moves from the files' tensors to storages of parameters; `reason` is why they are not all."""

    def __init__(self, tensors: Mapping[str, Tensor], targets: Iterable[torch.UntypedStorage]) -> None:
        TorchDispatchMode.__init__(self)
        self._sources = {tensor.untyped_storage()._cdata: name for name, tensor in tensors.items()}
        self._targets = {storage._cdata: storage for storage in targets}
        self.moves: list[Move] = []
        self.reason = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called for every operation of the loader."""
        for written in self._written(func, args):
            if func is _COPY:
                self._note(args[0], args[1])
            elif func not in _ZEROS or (len(args) > 1 and args[1] != 0):
                self.reason = self.reason or f"{func} writes a parameter of shape {list(written.shape)}"
        return func(*args, **(kwargs or {}))

    def _written(self, func: Any, args: Any) -> list[Tensor]:
        """Arguments that are written in place and lie in a parameter's storage."""
        named = zip(func._schema.arguments, args, strict=False)
        written = (arg for spec, arg in named if spec.alias_info is not None and spec.alias_info.is_write)
        return [arg for arg in written if isinstance(arg, Tensor) and arg.untyped_storage()._cdata in self._targets]

    def _note(self, to: Tensor, of: Tensor) -> None:
        source = self._sources.get(of.untyped_storage()._cdata) if isinstance(of, Tensor) else None
        if source is None:
            self.reason = self.reason or f"a parameter of shape {list(to.shape)} is computed from the files' tensors"
            return
        of = of.expand(to.shape)
        where = (source, int(of.storage_offset()), of.stride(), to.untyped_storage()._cdata)
        self.moves.append(Move(*where, int(to.storage_offset()), to.stride(), tuple(to.shape), to.dtype))


def hollow_tensors(files: Mapping[str, FileTensor]) -> dict[str, Tensor]:
    """Tensors of the files' shapes and dtypes without bytes."""
    return {
        name: torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype], device="meta")
        for name, tensor in files.items()
    }


def plan_of(
    moves: Iterable[Move], places: list[Place], files: Mapping[str, FileTensor], dtype: torch.dtype
) -> dict[str, Runs]:
    """Runs for each tensor of the files. Raises NotPlacedError when moves do not make the whole image."""
    at = {place.storage._cdata: place for place in places}
    by_source: dict[str, list[Move]] = {}
    for move in moves:
        if move.target in at:  # else of a head that has been tied since
            by_source.setdefault(move.source, []).append(move)
    written = {move.target for group in by_source.values() for move in group}
    missing = [place.views[0].name for key, place in at.items() if key not in written and place.nbytes]
    if missing:
        raise NotPlacedError(f"{missing[0]} is not in the files")
    plan = {
        name: _runs(tensor, by_source[name], at, dtype) if name in by_source else nowhere(tensor.shape, tensor.dtype)
        for name, tensor in files.items()
    }
    _check_once(plan)
    _check_whole(plan)
    return plan


def _runs(tensor: FileTensor, moves: list[Move], at: Mapping[int, Place], dtype: torch.dtype) -> Runs:
    to = moves[0].dtype
    raw = to == TORCH_DTYPES[tensor.dtype] and to != dtype
    if any(move.dtype != to for move in moves) or not (raw or (to == dtype and tensor.dtype in FLOATS)):
        raise NotPlacedError(f"{tensor.name} is converted from {tensor.dtype} to {str(to).removeprefix('torch.')}")
    pieces = [_pieces(move, at[move.target].offset, to.itemsize) for move in moves]
    first, count, byte = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.argsort(first, kind="stable")
    return Runs(tensor.shape, tensor.dtype, first[order], count[order], byte[order], to.itemsize, raw)


def _pieces(move: Move, offset: int, item: int) -> tuple[np.ndarray[Any, Any], ...]:
    """One move as pieces that are contiguous in file and image: first item of the file, items, byte of the image."""
    dims = [(n, t, s) for n, t, s in zip(move.shape, move.target_stride, move.source_stride, strict=True) if n != 1]
    run = 1
    while dims and dims[-1][1] == run and dims[-1][2] == run:
        run *= dims.pop()[0]
    to, of = np.array([move.target_offset], dtype=np.int64), np.array([move.source_offset], dtype=np.int64)
    for n, t, s in dims:
        to = (to[:, None] + np.arange(n) * t).ravel()
        of = (of[:, None] + np.arange(n) * s).ravel()
    return of, np.full_like(of, run), offset + to * item


def _check_once(plan: Mapping[str, Runs]) -> None:
    """Check that no byte of the image is written twice: chunks of files arrive in any order."""
    at = np.concatenate([runs.at for runs in plan.values()])
    nbytes = np.concatenate([runs.count * runs.item for runs in plan.values()])
    order = np.argsort(at)
    if (at[order][1:] < (at + nbytes)[order][:-1]).any():
        raise NotPlacedError("parts of a parameter are written twice")


def _check_whole(plan: Mapping[str, Runs]) -> None:
    """Raises WeightsError: a loader that divides tensors among ranks takes a part of one that is too large."""
    for name, runs in plan.items():
        placed, items = int(runs.count.sum()), math.prod(runs.shape)
        if placed not in (0, items):
            raise WeightsError(
                f"{name}: shape {list(runs.shape)}, of which {placed} items are used; weights and config.json do not "
                "belong together"
            )


def mean_piece_bytes(plan: Mapping[str, Runs]) -> float:
    """The mean size of the stage ring's copies."""
    pieces = sum(len(runs.at) for runs in plan.values())
    return sum(int(runs.count.sum()) * runs.item for runs in plan.values()) / max(pieces, 1)


def check_dtypes(files: Mapping[str, FileTensor]) -> None:
    """Raises ModelError for a dtype that torch does not have."""
    for tensor in files.values():
        if tensor.dtype not in TORCH_DTYPES:
            raise ModelError(f"{tensor.file}: {tensor.name}: torch has no dtype for {tensor.dtype}")
