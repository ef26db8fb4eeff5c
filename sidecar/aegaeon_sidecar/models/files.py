"""The weight files of a model directory: found and checked against config.json.

Only safetensors: a pickle can run code when it is read, so pickled weights are refused by name.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from aegaeon_sidecar.domain.errors import WeightsError
from aegaeon_sidecar.models.config import DecoderSpec
from aegaeon_sidecar.models.documents import MOST_INDEX_BYTES, read_document
from aegaeon_sidecar.models.header import FILE_DTYPES, FileTensor, read_header
from aegaeon_sidecar.models.tensors import canonical, may_ignore, tensor_shapes

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_AGAINST = "weights and config.json do not belong together"
_SHARD = re.compile(r"[\w.-]+\.safetensors")


def find_tensors(directory: Path, spec: DecoderSpec) -> dict[str, FileTensor]:
    """Find every tensor of `spec`, in memory order. Raises WeightsError; reads headers only."""
    tensors = read_tensors(directory)
    if spec.purpose.pools and not any(name.startswith("model.") for name in tensors):
        tensors = {canonical(name): tensor for name, tensor in tensors.items()}
    return _match(directory, spec, tensors)


def read_tensors(directory: Path) -> dict[str, FileTensor]:
    """All tensors of a directory's weight files. Raises WeightsError; reads headers only."""
    tensors: dict[str, FileTensor] = {}
    for path, promised in _shards(directory).items():
        header = read_header(path)
        _check_promise(path, promised, {tensor.name for tensor in header})
        for tensor in header:
            if tensor.name in tensors:
                raise WeightsError(f"{path}: {tensor.name}: is in {tensors[tensor.name].file.name} as well")
            tensors[tensor.name] = tensor
    return tensors


def _shards(directory: Path) -> dict[Path, set[str] | None]:
    """The files, each with the tensors that the index promises in it (None without an index)."""
    if (directory / SINGLE).exists():
        return {directory / SINGLE: None}
    if (directory / INDEX).exists():
        return _read_index(directory)
    pickled = sorted(file.name for pattern in PICKLED for file in directory.glob(pattern))
    if pickled:
        raise WeightsError(
            f"{directory}: only pickled weights ({', '.join(pickled[:4])}), which may run code when read; "
            "convert them to safetensors (transformers: save_pretrained)"
        )
    raise WeightsError(f"{directory}: neither {SINGLE} nor {INDEX}; fetch the model's weights")


def _read_index(directory: Path) -> dict[Path, set[str] | None]:
    path = directory / INDEX
    try:
        weight_map = json.loads(read_document(path, MOST_INDEX_BYTES))["weight_map"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise WeightsError(f"{path}: not a safetensors index with a weight_map: {error}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path}: weight_map must be an object of tensor name: file name")
    shards: dict[Path, set[str] | None] = {}
    promised: dict[Path, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _SHARD.fullmatch(file):
            raise WeightsError(f"{path}: {name}: {file!r:.80} is not the name of a .safetensors file beside the index")
        promised.setdefault(directory / file, set()).add(name)
    shards.update(sorted(promised.items()))
    return shards


def _check_promise(path: Path, promised: set[str] | None, present: set[str]) -> None:
    if promised is None or promised == present:
        return
    missing, extra = sorted(promised - present), sorted(present - promised)
    what = f"lacks {missing[0]}" if missing else f"holds {extra[0]}"
    raise WeightsError(f"{path}: {what}, against {INDEX}; the files are of different versions, fetch them again")


def _match(directory: Path, spec: DecoderSpec, tensors: dict[str, FileTensor]) -> dict[str, FileTensor]:
    shapes = tensor_shapes(spec)
    missing = [name for name in shapes if name not in tensors]
    if missing:
        raise WeightsError(f"{directory}: {len(missing)} tensors are missing, the first is {missing[0]}; {_AGAINST}")
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.dtype not in FILE_DTYPES.values():
            raise WeightsError(
                f"{tensor.file}: {name}: dtype is {tensor.dtype}; allowed: {', '.join(FILE_DTYPES.values())}; "
                "quantised weights need backend vllm"
            )
        if tensor.shape != shape:
            raise WeightsError(f"{tensor.file}: {name}: shape {list(tensor.shape)}, must be {list(shape)}; {_AGAINST}")
    for name, tensor in tensors.items():
        if name not in shapes and not may_ignore(spec, name):
            raise WeightsError(f"{tensor.file}: {name}: {spec.architecture} has no such tensor; {_AGAINST}")
    return {name: tensors[name] for name in shapes}
