"""Attention of a decode over blocks where they lie (`paged`), beside torch's flex_attention over the same KV.

flex_attention reads a tensor per layer and cannot address blocks that hold all layers: it gets keys and values
gathered beforehand, for nothing, and need not write the new token's. Where it is faster all the same, `paged` is the
wrong choice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch
from benchmarks.gpu_day.plan import SKIPPED
from benchmarks.gpu_rig import Bench, begin, median_s
from benchmarks.report import Row
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from triton.runtime.errors import InterpreterError

from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.paged import Paged
from aegaeon_sidecar.models.layout import KvShape

HEADS = 32
SHAPES = (KvShape(4, 16, 32, 128, "bfloat16"), KvShape(4, 16, 8, 128, "bfloat16"))  # of a 7B, and of an 8B with groups
BATCHES, CONTEXTS = (1, 16), (512, 4096)
CALLS = 32  # in one graph, so that the launch of a graph does not count
LAYER = 2


def step(shape: KvShape, batch: int, context: int, device: str) -> tuple[Paged, Tensor, Tensor, Tensor]:
    """A cache of noise with `batch` sequences scattered in it; queries [batch, heads, dim]; all keys and values
    [batch, kv heads, context, dim] of LAYER."""
    each = context // shape.block_tokens
    memory = torch.empty(batch * each * shape.block_bytes, dtype=torch.uint8, device=device)
    cache = KvCache(shape, memory)
    cache.flat.normal_()
    tables = torch.randperm(batch * each, device=device).view(batch, each)
    held = cache.blocks.view(-1, shape.layers, 2, shape.block_tokens, shape.kv_heads, shape.head_dim)[tables]
    keys, values = (held[:, :, LAYER, kind].flatten(1, 2).transpose(1, 2).contiguous() for kind in (0, 1))
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
    queries = torch.randn(batch, HEADS, shape.head_dim, dtype=cache.flat.dtype, device=device)
    return Paged(cache, lengths, tables.int(), context), queries, keys, values


def calls(shape: KvShape, batch: int, context: int, device: str) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """One layer's attention of a step, each way: [batch, heads * dim]."""
    paged, queries, keys, values = step(shape, batch, context, device)
    lengths, last = paged.lengths, context - 1
    new = keys[:, :, last].contiguous(), values[:, :, last].contiguous()  # written where they are

    def seen(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return kv < lengths[b]

    mask = create_block_mask(seen, batch, None, 1, context, device=device)
    flex = torch.compile(flex_attention) if device != "cpu" else flex_attention

    def peer() -> Tensor:
        out = flex(queries[:, :, None], keys, values, block_mask=mask, enable_gqa=shape.kv_heads != HEADS)
        assert isinstance(out, Tensor)
        return out[:, :, 0].flatten(1)

    return lambda: paged.attend(LAYER, None, queries, *new), peer


def graphed_s(action: Callable[[], Tensor], device: str) -> float:
    """Seconds of one call, of CALLS replayed as one graph; on a CPU of one by itself."""
    if device == "cpu":
        return median_s(action, 1)
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        for _ in range(3):
            action()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            action()
    graph.replay()
    return median_s(graph.replay, 21) / CALLS


def main() -> int:
    bench, _ = begin("gpu_attention", __doc__)
    try:
        measure(bench)
    except InterpreterError as error:  # only where there is no GPU; Triton 3.6's is older than NumPy 2.5
        print(f"Triton's interpreter cannot run these kernels here: {error}")
        return SKIPPED
    return bench.status


def measure(bench: Bench) -> None:
    """Each shape, batch and context: the same result, and the time of both."""
    sizes = bench.sized(tuple((b, c) for b in BATCHES for c in CONTEXTS), ((2, 64),))
    with torch.inference_mode():
        for shape in bench.sized(SHAPES, (replace(SHAPES[1], dtype="float32"),)):  # Triton's interpreter lacks bfloat16
            for batch, context in sizes:
                ours, theirs = calls(shape, batch, context, bench.device)
                torch.testing.assert_close(ours(), theirs(), rtol=2e-2, atol=2e-2)
                name = f"{shape.kv_heads} key heads, batch {batch}, {context} tokens (limit: flex_attention)"
                mine, peer = (graphed_s(action, bench.device) * 1e6 for action in (ours, theirs))
                bench.figures.add(Row(name, mine, "us", peer, "<="))


if __name__ == "__main__":
    sys.exit(main())
