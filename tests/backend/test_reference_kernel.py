"""The kernel that CuPy compiles on a GPU as the reference of ours, by a C++ compiler: it is right, and so is ours."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
import torch
from backend.test_paged import paged_state

from aegaeon_sidecar.models.layout import KvShape

KERNEL = Path(__file__).parents[1] / "gpu" / "reference_attention.cu"
ON_CPU = f"""
#include <cmath>
using std::exp;
struct Index {{ int x, y, z; }};
static Index blockIdx, threadIdx;
#define __global__
#include "{KERNEL}"
extern "C" void run(int rows, int heads, const float* q, const float* cache, const int* tables, int table_width,
                    const int* lengths, float* out, int layer, int layers, int slots, int kv_heads, int group, int dim,
                    int window, double scale) {{
  for (blockIdx.x = 0; blockIdx.x < rows; ++blockIdx.x)
    for (blockIdx.y = 0; blockIdx.y < heads; ++blockIdx.y)
      for (threadIdx.x = 0; threadIdx.x < dim; ++threadIdx.x)
        attend(q, cache, tables, table_width, lengths, out, layer, layers, slots, kv_heads, group, dim, window, scale);
}}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "kernel.cpp").write_text(ON_CPU)
    options = ["-O1", "-std=c++17", "-fPIC", "-shared", "-o", str(folder / "kernel.so")]
    subprocess.run([os.environ.get("CXX", "c++"), *options, str(folder / "kernel.cpp")], check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


@pytest.mark.parametrize("window", [None, 20])
def test_attention_over_blocks_is_that_of_the_reference_kernel(compiled: ctypes.CDLL, window: int | None) -> None:
    lengths, heads, shape = [1, 0, 16, 33, 300], 6, KvShape(2, 16, 2, 32, "float32")
    paged, queries, new = paged_state(lengths, heads, shape)
    computed = paged.attend(1, window, queries, new[:, :2], new[:, 2:])
    expected, queries = torch.empty_like(computed), queries.contiguous()
    arguments = (queries, paged.cache.flat, paged.tables, paged.tables.shape[1], paged.lengths, expected)
    pointers = (ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else ctypes.c_int(x) for x in arguments)
    sizes = (1, shape.layers, shape.block_tokens, 2, heads // 2, 32, window or 1 << 30)
    compiled.run(len(lengths), heads, *pointers, *map(ctypes.c_int, sizes), ctypes.c_double(32**-0.5))
    torch.testing.assert_close(computed, expected, rtol=1e-4, atol=1e-5)
