"""Chunks of a prompt: what the host prepares does not grow with tokens times context, and who sees what is the same."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch.attention import piece_bias, prepare, shares_key_heads
from aegaeon_sidecar.backends.torch.step_layout import Chunk, LayoutBuilder, Piece
from aegaeon_sidecar.models.layout import KvShape

SHAPE = KvShape(32, 16, 8, 128, "bfloat16")


def piece(position: int, queries: int, **changes: int) -> Piece:
    fields = {"first": 0, "before": 0, "after": 0, "context": position + queries, **changes}
    return Piece(position=position, queries=queries, **fields)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors(each)


@pytest.mark.parametrize("windows", [[None], [None, 4096]])
def test_what_is_prepared_for_a_chunk_is_as_large_as_its_tokens_and_its_block_table(windows: list[int | None]) -> None:
    builder = LayoutBuilder(SHAPE, windows, 32000, torch.device("cpu"), invariant=True)
    context = 32768
    part = StepInput([5] * 512, context - 512, np.arange(context // 16, dtype=np.int32), None)
    layout = builder.build([part], [0], context // 16)
    per_layer = 2 * 512  # where keys and values go
    assert sum(tensor.numel() for tensor in tensors(layout)) <= SHAPE.layers * per_layer + 2 * context // 16 + 2 * 513


@pytest.mark.parametrize(
    "seen_by", [piece(0, 5), piece(7, 5), piece(16, 1), piece(30, 34), piece(35, 10, before=3, after=3, context=64)]
)
@pytest.mark.parametrize("window", [None, 1, 6, 100])
def test_a_token_sees_its_window_up_to_itself(seen_by: Piece, window: int | None) -> None:
    bias = piece_bias(seen_by, window, torch.empty(0, dtype=torch.bfloat16))
    rows = range(seen_by.position - seen_by.before, seen_by.end + seen_by.after)
    seen = torch.tensor([[at - (window or 1000) < place <= at for place in range(seen_by.context)] for at in rows])
    if bias is None:
        assert (seen_by.position, seen_by.before, seen_by.after) == (0, 0, 0)  # a library's causal attention
        assert torch.equal(seen, torch.ones(len(rows), len(rows), dtype=torch.bool).tril())
    else:
        assert bias.dtype == torch.bfloat16
        assert torch.equal(bias[:, : seen_by.context], torch.where(seen, 0.0, -torch.inf).to(torch.bfloat16))


@pytest.mark.parametrize("context", [17, 33, 64, 65, 97])
def test_a_mask_is_never_as_wide_as_a_gpus_kernel_gets_wrong(context: int) -> None:
    """1 modulo 32, with keys that are expanded (pytorch 191937): 0.34 of the result on an H200."""
    bias = piece_bias(piece(0, context), 8, torch.empty(0))
    assert isinstance(bias, torch.Tensor)
    assert bias.shape[1] % 16 == 0
    assert bool((bias[:, context:] == -torch.inf).all())
    builder = LayoutBuilder(SHAPE, [8], 32000, torch.device("cpu"), invariant=False)
    table = np.arange(-(-context // 16), dtype=np.int32)
    chunk = builder.build([StepInput([5] * context, 0, table, None)], [0], len(table)).groups[0]
    assert isinstance(chunk, Chunk)
    assert len(chunk.reads) == 2 * bias.shape[1] // 16  # as many keys are gathered


@pytest.mark.parametrize(("start", "queries"), [(7, 5), (48, 16)])
def test_causality_aligned_with_the_last_token_is_the_mask_of_a_chunk(start: int, queries: int) -> None:
    """What a GPU is asked for without a mask: torch's own meaning of it, held against ours."""
    from torch.nn.attention.bias import causal_lower_right  # a second, which other tests need not wait for

    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, queries, 16, generator=generator)
    k, v = torch.randn(2, 2, 4, start + queries, 16, generator=generator)
    mask = piece_bias(piece(start, queries), None, q)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says why a CPU has none of these kernels
        aligned = scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(queries, start + queries))
    torch.testing.assert_close(aligned, scaled_dot_product_attention(q, k, v, attn_mask=mask[:, : start + queries]))


def test_on_a_gpu_a_chunk_without_a_window_needs_no_mask() -> None:
    class OnGpu:
        is_cuda = True

    bias: Any = piece_bias(piece(512, 512), None, OnGpu())  # type: ignore[arg-type]  # its device is asked for alone
    assert (bias.variant.name, bias.seq_len_q, bias.seq_len_kv) == ("LOWER_RIGHT", 512, 1024)
    assert piece_bias(piece(0, 512), None, OnGpu()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [0, 48])
def test_a_gpu_in_16_bits_reads_each_key_head_once(start: int) -> None:
    """Where FlashAttention takes the chunk, whose answer is then that of keys repeated for their query heads."""

    class OnGpu:
        is_cuda = True
        dtype = torch.bfloat16

    bias = piece_bias(piece(start, 16), None, OnGpu())  # type: ignore[arg-type]  # its device is asked for alone
    mask = piece_bias(piece(start, 16), 8, torch.empty(0))
    assert shares_key_heads(OnGpu(), bias)  # type: ignore[arg-type]
    assert not shares_key_heads(OnGpu(), mask)  # type: ignore[arg-type]
    assert not shares_key_heads(torch.empty(0), bias)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 16 + at, 16, generator=generator) for heads, at in ((4, 0), (1, start)))
    causal: Any = {"is_causal": True} if bias is None else {"attn_mask": bias}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says why a CPU has none of these kernels
        repeated, shared = (
            scaled_dot_product_attention(q, keys, keys, enable_gqa=gqa, **causal)
            for keys, gqa in ((k.expand(2, 4, -1, -1), False), (k, True))
        )
    torch.testing.assert_close(shared, repeated)


def test_on_a_gpu_one_library_computes_all_chunks() -> None:
    """cuDNN, which torch prefers on Hopper, would compute first chunks alone, and plan for each length of a prompt."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        prepare(torch.device("cuda"))
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_a_long_chunk_and_a_short_one_share_a_step(rig: Any, tiny_models: dict[str, Any]) -> None:
    """A block table is as wide as the longest sequence's, and as the last piece of its own."""
    tiny = rig(tiny_models["llama"])
    tokens = [5 + at % 300 for at in range(200)]
    table, short = tiny.table(200), tiny.table(20)
    parts = [tiny.input(tokens, 0, table), tiny.input(tokens[:20], 0, short)]
    together = tiny.backend.logits("model", parts)
    for row, part in enumerate(parts):
        assert torch.equal(tiny.backend.logits("model", [part])[0], together[row])
