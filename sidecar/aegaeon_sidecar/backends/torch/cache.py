"""The KV blocks of one shape as tensors: the same bytes seen as blocks, as rows to gather and as tokens to write."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from aegaeon_native.arrays import DeviceBytes
from aegaeon_sidecar.models.layout import KvShape


class KvCache:
    """Views of the range that holds the blocks of `shape`; a view stays right while slabs come and go under it.

    flat [elements]; blocks [n, elements of a block]; rows [n * layers * 2, block_tokens * kv_heads * head_dim], row
    (b * layers + l) * 2 the keys of block b in layer l, the next one its values; tokens [rows * block_tokens,
    kv_heads * head_dim].
    """

    def __init__(self, shape: KvShape, memory: DeviceBytes) -> None:
        self.shape = shape
        flat = from_dlpack(memory)
        self.capacity = len(flat) // shape.block_bytes
        width = shape.kv_heads * shape.head_dim
        flat = flat[: self.capacity * shape.block_bytes].view(getattr(torch, shape.dtype))
        self.flat: Tensor = flat
        self.blocks: Tensor = flat.view(self.capacity, -1)
        self.rows: Tensor = flat.view(-1, shape.block_tokens * width)
        self.tokens: Tensor = flat.view(-1, width)
