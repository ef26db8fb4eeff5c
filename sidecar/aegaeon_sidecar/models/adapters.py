"""An adapter (LoRA) as files: adapter_config.json and adapter_model.safetensors, as PEFT writes them.

Its image holds its tensors in the order of the file, 256-byte aligned, in the engine's dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from aegaeon_sidecar.domain.errors import WeightsError
from aegaeon_sidecar.models.files import PICKLED
from aegaeon_sidecar.models.header import FLOATS, FileTensor, read_header
from aegaeon_sidecar.models.layout import ALIGNMENT, ENGINE_DTYPES
from aegaeon_sidecar.models.placement import ADAPTER_CONFIG, Layout, TensorPlace
from aegaeon_sidecar.models.runs import Runs

ADAPTER_WEIGHTS = "adapter_model.safetensors"


def read_adapter(directory: Path) -> dict[str, FileTensor]:
    """Its tensors. Raises WeightsError; reads the header only."""
    path = directory / ADAPTER_WEIGHTS
    if not path.exists() and (pickled := sorted(file.name for kind in PICKLED for file in directory.glob(kind))):
        raise WeightsError(
            f"{directory}: only pickled weights ({pickled[0]}), which may run code when read; convert them to "
            "safetensors (PEFT: save_pretrained)"
        )
    return {tensor.name: tensor for tensor in read_header(path)}


def lay_out_adapter(directory: Path, tensors: Iterable[FileTensor], dtype: str) -> Layout:
    """The image of these tensors. Raises WeightsError for one that is not of floating-point numbers."""
    item, end = ENGINE_DTYPES[dtype], 0
    places: list[TensorPlace] = []
    plan: dict[str, Runs] = {}
    for tensor in tensors:
        if tensor.dtype not in FLOATS:
            raise WeightsError(f"{tensor.file}: {tensor.name}: dtype is {tensor.dtype}; allowed: {', '.join(FLOATS)}")
        places.append(TensorPlace(tensor.name, end, tensor.items * item))
        first, count, at = (np.array([number], dtype=np.int64) for number in (0, tensor.items, end))
        plan[tensor.name] = Runs(tensor.shape, tensor.dtype, first, count, at, item, raw=False)
        end += -(-tensor.items * item // ALIGNMENT) * ALIGNMENT
    return Layout(
        weight_bytes=end,
        tensors=tuple(places),
        kv_shape="",
        kv_block_bytes=0,
        kv_block_tokens=0,
        max_model_len=0,
        files=(directory / ADAPTER_WEIGHTS,),
        dtype=dtype,
        plan=plan,
        config=ADAPTER_CONFIG,
    )
