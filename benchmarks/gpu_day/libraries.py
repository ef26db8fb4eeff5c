"""What torch's libraries do on this device that the engine's design rests on, for the stage `assumptions`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu_rig import median_s
from benchmarks.report import Row
from torch import Tensor
from torch.nn.functional import linear, pad, scaled_dot_product_attention

from aegaeon_sidecar.backends.torch.attention import attend_piece, piece_bias, prepare
from aegaeon_sidecar.backends.torch.step_layout import QUERY_TILE, Piece

LENGTHS = (33, 97, 128, 257, 511, 1000, 1537, 2048)
_HEADS, _GROUP, _DIM = 8, 4, 128
_SHAPES = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256))  # of an 8B's products
_BEYOND_CACHES, _REPEATS = 256 << 20, 8
_ROWS = (1, 8, 16, 32, 64, 128, 256)
# As vLLM sets cuBLAS on Hopper for VLLM_BATCH_INVARIANT (model_executor/determinism/batch_invariant.py): no split-k.
_WITHOUT_SPLITS = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


def first_chunks(device: str, small: bool) -> Iterator[Row]:
    """Attention of a prompt's first chunk: as the engine asks for it, and by each library that torch may choose."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    lengths = LENGTHS[:3] if small else LENGTHS
    prepare(torch.device(device))
    yield from _by_length("as the engine asks for it", device, lengths, _engine)
    if device == "cpu":
        return
    for name, library in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention", SDPBackend.FLASH_ATTENTION)):

        def alone(q: Tensor, k: Tensor, v: Tensor, library: Any = library) -> Tensor:
            with sdpa_kernel(library):
                return scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)

        yield from _by_length(name, device, lengths, alone)


def _by_length(name: str, device: str, lengths: tuple[int, ...], run: Any) -> Iterator[Row]:
    first, again, worst = 0.0, 0.0, 0.0
    for length in lengths:
        q, k, v = _random(device, length)
        first += median_s(lambda q=q, k=k, v=v: run(q, k, v), 1)
        again += median_s(lambda q=q, k=k, v=v: run(q, k, v), 1)
        worst = max(worst, _error(run(q, k, v), _in_float32(q, k, v, is_causal=True)))
    engine = name.startswith("as the engine")
    limit = again if engine else None
    yield Row(
        f"first chunks, {name}: {len(lengths)} lengths for the first time", 1e3 * first, "ms", _ms(limit), "<=", 5.0
    )
    yield Row(f"first chunks, {name}: again", 1e3 * again, "ms")
    yield Row(f"first chunks, {name}: error beside float32", worst, "(relative)", 0.02 if engine else None, "<=")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _random(device: str, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [key heads, query heads of each, length, dim]; keys and values [key heads, 1, length, dim]."""
    generator = torch.Generator(device).manual_seed(length)
    made = torch.randn(length, _HEADS, _GROUP + 2, _DIM, device=device, dtype=torch.bfloat16, generator=generator)
    q, k, v = made.permute(1, 2, 0, 3).split([_GROUP, 1, 1], dim=1)
    return q, k, v


def _engine(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """The engine's own call for a chunk at the end of the context, whose last block is not full."""
    queries, context = q.shape[2], k.shape[2]
    k, v = (pad(each, (0, 0, 0, -context % QUERY_TILE), value=1.0) for each in (k, v))
    piece = Piece(first=0, queries=queries, position=context - queries, context=context, before=0, after=0)
    return attend_piece(piece, piece_bias(piece, window, q), q, k, v)


def _in_float32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    wide = q.shape[0], q.shape[1], k.shape[2], k.shape[3]
    return scaled_dot_product_attention(q.float(), k.float().expand(wide), v.float().expand(wide), **options)


def _error(out: Tensor, reference: Tensor) -> float:
    return float((out.float() - reference).norm() / reference.norm())


def windows(device: str) -> Iterator[Row]:
    """Later chunks, and those with a window, whose mask another kernel takes (pytorch 191937: lengths of 1 mod 32)."""
    q, k, v = _random(device, 700)
    reference = _in_float32(q, k, v, is_causal=True)[:, :, 512:]
    yield Row(
        "a later chunk: error beside float32", _error(_engine(q[:, :, 512:], k, v), reference), "(relative)", 0.02, "<="
    )
    worst = 0.0
    for length in (64, 65, 96, 97, 129, 161):
        q, k, v = _random(device, length)
        back = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
        mask = torch.zeros(length, length, device=device).masked_fill_((back < 0) | (back >= 48), float("-inf"))
        worst = max(worst, _error(_engine(q, k, v, window=48), _in_float32(q, k, v, attn_mask=mask)))
    yield Row("chunks with a window: error beside float32", worst, "(relative)", 0.02, "<=")


def small_kernels(device: str, small: bool) -> Iterator[Row]:
    """What each of a decode's small kernels costs at least, in a graph."""
    if device == "cpu":
        return
    x, stream, count = torch.ones(64, 4096, device=device, dtype=torch.bfloat16), torch.cuda.Stream(device), 1000
    with torch.cuda.stream(stream):
        x.mul_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(count):
            x.mul_(1)
    yield Row("a small kernel in a graph", 1e6 * median_s(graph.replay) / count, "us")
    for blocking in (False, True):
        event = torch.cuda.Event(blocking=blocking)
        seconds = median_s(lambda event=event: (x.mul_(1), event.record(), event.synchronize()), 21)
        yield Row(f"a kernel launched and waited for by an event, blocking: {blocking}", 1e6 * seconds, "us")


def gathers(device: str, small: bool) -> Iterator[Row]:
    """Keys and values of 8K tokens gathered from a small tensor, and from one of more than 2^31 elements."""
    width = 64 if small else 16 * 1024
    for rows in (8192,) if small else (8192, 1 << 18):
        cache = torch.empty(rows, width, device=device, dtype=torch.bfloat16)
        index = torch.randint(rows, (1024,), device=device)
        seconds = median_s(lambda cache=cache, index=index: cache.index_select(0, index))
        size = f"{cache.numel() * 2 / 1e9:.1f} GB"
        yield Row(f"gathered from {size}, bytes read and written", 2 * 1024 * width * 2 / seconds / 1e9, "GB/s")


def products(device: str, small: bool, scratch: Path) -> Iterator[Row]:
    """Microseconds by rows, and which numbers of rows give the bits of 64, with and without split-k in cuBLAS."""
    for name, environment in (("", {}), (", no split-k", _WITHOUT_SPLITS)):
        with tempfile.NamedTemporaryFile(dir=scratch) as file:
            command = [sys.executable, "-m", "benchmarks.gpu_day.libraries", device, str(int(small)), file.name]
            subprocess.run(command, env=os.environ | environment, check=True)
            for row in json.loads(Path(file.name).read_text("utf-8")):
                yield Row(row["figure"] + name, row["value"], row["unit"])


def _product_s(x: Tensor, weights: list[Tensor]) -> float:
    """Of one of many launched in a row: the launch of the next hides behind the last."""
    several = weights * _REPEATS
    return median_s(lambda: [linear(x, weight) for weight in several]) / len(several)


def _products(device: str, small: bool) -> Iterator[dict[str, Any]]:
    """In a process of its own: cuBLAS reads its environment once."""
    if "CUBLAS_WORKSPACE_CONFIG" in os.environ and device != "cpu":
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.preferred_blas_library(backend="cublaslt")
    for inner, outer in ((128, 256),) if small else _SHAPES:
        weights = [  # more than a cache holds
            torch.randn(outer, inner, device=device, dtype=torch.bfloat16)
            for _ in range(1 if small else max(1, _BEYOND_CACHES // (2 * outer * inner)))
        ]
        weight = weights[0]
        x = torch.randn(max(_ROWS), inner, device=device, dtype=torch.bfloat16)
        rows_64, name = linear(x[:64], weight), f"product {inner} x {outer}"
        for rows in _ROWS[:3] if small else _ROWS:
            yield {"figure": f"{name}, {rows} rows", "value": 1e6 * _product_s(x[:rows], weights), "unit": "us"}
            if rows <= 64:
                same = torch.equal(linear(x[:rows], weight), rows_64[:rows])
                yield {"figure": f"{name}, {rows} rows: the bits of 64", "value": int(same), "unit": "(1: yes)"}


if __name__ == "__main__":
    with torch.inference_mode():
        answers = list(_products(sys.argv[1], sys.argv[2] == "1"))
    Path(sys.argv[3]).write_text(json.dumps(answers), "utf-8")
