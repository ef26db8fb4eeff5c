"""A step's time by products, attention, other kernels, and the rest between them."""

from __future__ import annotations

import pytest
from benchmarks.gpu_kernels import Kernel, kernel_rows


def test_kernels_are_counted_by_kind_and_the_rest_of_a_step_is_between_them() -> None:
    step = [
        Kernel("nvjet_tst_64x64_64x16_1x1_h_bz_TNT", 3e-3),
        Kernel("void cublasLt::splitKreduce_kernel<32, 16>", 1e-3),
        Kernel("_attend_split", 5e-4),
        Kernel("_join", 1e-4),
        Kernel("_write", 1e-4),
        Kernel("void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel>", 3e-4),
    ]
    rows = {row.figure: row.value for row in kernel_rows("7B", step * 2, steps=2, step_s=6e-3)}
    assert rows == pytest.approx(
        {"7B: kernels": 6, "7B: products": 4, "7B: attention": 0.7, "7B: other kernels": 0.3, "7B: between kernels": 1}
    )
