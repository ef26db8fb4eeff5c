"""The header of one safetensors file: read without any tensor byte, and validated."""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aegaeon_sidecar.domain.errors import WeightsError
from aegaeon_sidecar.models.documents import open_regular

FLOATS = {"F32": 4, "F16": 2, "BF16": 2}
ITEM_BYTES = FLOATS | {  # what safetensors knows of whole bytes
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "I32": 4,
    "U32": 4,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}
FILE_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
MAX_RANK = 8
PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class FileTensor:
    """One tensor in a file: `offset` is counted from the start of the file, bytes."""

    name: str
    file: Path
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def items(self) -> int:
        return self.nbytes // ITEM_BYTES[self.dtype]


def read_header(path: Path) -> list[FileTensor]:
    """The tensors of a file in the order of their bytes. Raises WeightsError for anything that does not add up."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            text = _header_bytes(path, file.read(PREFIX_BYTES), size, file.read)
    except FileNotFoundError as error:
        raise WeightsError(f"{path}: missing; fetch the model again") from error
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from error
    entries = _parse(path, text)
    entries.pop("__metadata__", None)
    start = PREFIX_BYTES + len(text)
    tensors = [_tensor(path, name, entry, start) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    _check_cover(path, tensors, start, size)
    return tensors


def _header_bytes(path: Path, prefix: bytes, size: int, read: Any) -> bytes:
    if len(prefix) < PREFIX_BYTES:
        raise WeightsError(f"{path}: {size} bytes, too short for a safetensors file; fetch it again")
    (length,) = struct.unpack("<Q", prefix)
    if length > MAX_HEADER_BYTES:
        raise WeightsError(f"{path}: claims a header of {length} bytes, at most {MAX_HEADER_BYTES} are allowed")
    if length > size - PREFIX_BYTES:
        raise WeightsError(f"{path}: truncated inside its header ({length} bytes claimed, file has {size})")
    text: bytes = read(length)
    return text


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: header is not valid: {error}") from error
    if not isinstance(entries, dict):
        raise WeightsError(f"{path}: header is not a JSON object")
    return entries


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name appears twice")
    return entries


def _tensor(path: Path, name: str, entry: Any, start: int) -> FileTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise WeightsError(f"{path}: {name}: must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise WeightsError(f"{path}: {name}: dtype is {dtype!r:.40}; allowed: {', '.join(ITEM_BYTES)}")
    if not _naturals(shape) or len(shape) > MAX_RANK:
        raise WeightsError(f"{path}: {name}: shape must be a list of at most {MAX_RANK} sizes")
    if not _naturals(offsets) or len(offsets) != 2:
        raise WeightsError(f"{path}: {name}: data_offsets must be [begin, end]")
    begin, end = offsets
    needed = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != needed:
        raise WeightsError(f"{path}: {name}: offsets span {end - begin} bytes, {dtype} {shape} needs {needed}")
    return FileTensor(name, path, start + begin, needed, dtype, tuple(shape))


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**48 for item in value)


def _check_cover(path: Path, tensors: list[FileTensor], start: int, size: int) -> None:
    end = start
    for tensor in tensors:
        if tensor.offset != end:
            problem = "overlaps the tensor before it" if tensor.offset < end else "leaves a hole before it"
            raise WeightsError(f"{path}: {tensor.name}: {problem}; the file is damaged, fetch it again")
        end += tensor.nbytes
    if end > size:
        raise WeightsError(f"{path}: truncated: {size} bytes of {end}; fetch it again")
    if end < size:
        raise WeightsError(f"{path}: {size - end} bytes after the last tensor; the file is damaged, fetch it again")
