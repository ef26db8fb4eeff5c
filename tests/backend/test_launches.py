"""What Triton's launcher makes of the decode kernels' arguments: no pointer is refused, no context compiles another."""

from __future__ import annotations

from types import ModuleType

import compile_kernels
import pytest
import torch
from triton_launcher import Launcher, is_mapped

from aegaeon_native import BlockPool, SlabPool
from aegaeon_sidecar.backends import fused_draws
from aegaeon_sidecar.backends.decodes import ROWS, context_size
from aegaeon_sidecar.backends.draws import COLUMNS
from aegaeon_sidecar.backends.torch import paged
from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.paged import Paged
from aegaeon_sidecar.backends.torch.step_layout import Window
from aegaeon_sidecar.models.layout import KvShape

KERNELS = ((paged, "_write"), (paged, "_attend_split"), (paged, "_join"), (fused_draws, "_draw"))


def launchers(monkeypatch: pytest.MonkeyPatch, *, run: bool) -> dict[str, Launcher]:
    """In the place of every kernel, by its name."""

    def stand_in(module: ModuleType, name: str) -> Launcher:
        launcher = Launcher(getattr(module, name), run)
        monkeypatch.setattr(module, name, launcher)
        return launcher

    return {name: stand_in(module, name) for module, name in KERNELS}


def test_a_decode_runs_while_the_beginning_of_its_range_is_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sequences of a range have ended and their slab went elsewhere; another one decodes behind it."""
    shape = KvShape(1, 16, 2, 16, "float32")
    slab_bytes = 16 * shape.block_bytes
    blocks = BlockPool(SlabPool.private("test-launches", slab_bytes, 8), shape.block_bytes, 8)
    ended, living = blocks.allocate(16, 8), blocks.allocate(16, 8)
    blocks.release(ended)
    assert not is_mapped(blocks.address)
    cache = KvCache(shape, blocks.dlpack())
    lengths, table = torch.tensor([3], dtype=torch.int32), torch.from_numpy(living).int()[None]
    new = torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(0))
    cache.blocks[living[0]].zero_()
    launchers(monkeypatch, run=True)
    out = Paged(cache, lengths, table, 256).attend(0, None, new[:, :4], new[:, 4:6], new[:, 6:])
    weight = 1 / (1 + 2 * torch.exp(-(new[0, 0] @ new[0, 4]) / 4))  # beside two tokens of zeros
    torch.testing.assert_close(out[0, :16], weight * new[0, 6])


@pytest.mark.parametrize("windows", [(None,), (1023, None), (4096,)])
def test_a_kernel_has_one_binary_for_a_model_whatever_is_decoded(
    monkeypatch: pytest.MonkeyPatch, windows: tuple[Window, ...]
) -> None:
    """All sizes of passes for contexts of 1 to 32K tokens; a model may have windows in some layers."""
    kernels = launchers(monkeypatch, run=False)
    shape = KvShape(18, 16, 2, 64, "bfloat16")
    cache = KvCache(shape, torch.zeros(shape.block_bytes, dtype=torch.uint8))
    for most in (32768, 32000):
        for size in sorted({context_size(longest, most) for longest in range(1, most + 1, 97)} | {most}):
            for rows in ROWS:
                pass_of(cache, rows, size, windows)
    assert {name: len(kernel.binaries) for name, kernel in kernels.items()} == dict.fromkeys(kernels, 1)
    for kernel in kernels.values():
        assert kernel.aligned == compile_kernels.aligned_arguments(kernel.arg_names), "make cuda compiles another"


def pass_of(cache: KvCache, rows: int, size: int, windows: tuple[Window, ...]) -> None:
    """Attention of every layer of a model with 8 query heads, and the draws behind it."""
    step = Paged(
        cache,
        torch.zeros(rows, dtype=torch.int32),
        torch.zeros(rows, -(-size // cache.shape.block_tokens), dtype=torch.int32),
        size,
    )
    dim, heads = cache.shape.head_dim, cache.shape.kv_heads
    new = torch.zeros(rows, 8 + 2 * heads, dim, dtype=torch.bfloat16)
    queries, keys, values = new.split([8, heads, heads], dim=1)
    for layer in range(cache.shape.layers):
        step.attend(layer, windows[layer % len(windows)], queries, keys, values)
    logits, rules = torch.zeros(rows, 512), torch.zeros(rows, COLUMNS, dtype=torch.float64)
    fused_draws.draw(logits, rules, torch.zeros(rows, dtype=torch.int64))
