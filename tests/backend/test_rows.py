"""Products as torch's, and each row the same bits whatever the number of rows."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.functional import linear

from aegaeon_native import NativeError, row_product, set_product_helpers
from aegaeon_sidecar.backends import rows
from aegaeon_sidecar.backends.rows import (
    TURNED_ROWS,
    Product,
    has_native_product,
    padded_linear,
    row_tile,
    steady_linear,
    steady_product,
)

COUNTS = (0, 1, 2, 3, 8, 9, 17, TURNED_ROWS - 1, TURNED_ROWS, TURNED_ROWS + 1, 200)
KINDS = [(torch.float32, 1), (torch.float32, 2), (torch.bfloat16, 1), (torch.float16, 1)]  # and threads
kinds = pytest.mark.parametrize(("dtype", "threads"), KINDS)


def steady(dtype: torch.dtype, threads: int) -> Product:
    """Skips where rows depend on each other."""
    product = steady_product(dtype, threads)
    tile = row_tile(dtype, threads, product)
    if not tile:
        pytest.skip("this machine's matrix library has no number of rows from which its sums keep their order")
    return partial(padded_linear, tile=tile, product=product)


def data(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((200, 1024), (96, 1024), (96,)))
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


def assert_is_product(product: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """But for rounding: the sum's, in float32 and in any order, grows with the root of its length (a random walk) and
    with the size of what is added up; then the product and its sum with the bias are rounded to their own format."""
    added = torch.zeros(len(weight)) if bias is None else bias
    exact = linear(x.double(), weight.double(), added.double())
    of_the_sum = x.shape[1] ** 0.5 * torch.finfo(torch.float32).eps * linear(x.double().abs(), weight.double().abs())
    of_results = torch.finfo(product.dtype).eps * (exact.abs() + added.double().abs())
    assert ((product.double() - exact).abs() <= of_the_sum + of_results).all()


@kinds
def test_a_product_is_torchs_for_every_number_of_rows_with_and_without_a_bias(dtype: torch.dtype, threads: int) -> None:
    x, weight, bias = data(dtype)
    for count in COUNTS:
        for other in (None, bias):
            product = steady_linear(dtype, threads)(x[:count], weight, other)
            assert product.dtype == dtype
            assert_is_product(product, x[:count], weight, other)


@kinds
def test_no_row_depends_on_the_number_of_rows(dtype: torch.dtype, threads: int) -> None:
    x, weight, bias = data(dtype)
    product = steady(dtype, threads)
    for other in (None, bias):
        whole = product(x, weight, other)
        for count in COUNTS:
            assert torch.equal(product(x[:count], weight, other), whole[:count])


def test_in_float32_with_one_thread_no_row_is_padded() -> None:
    if not has_native_product(torch.float32, 1):
        pytest.skip("this processor has no AVX2 and FMA")
    assert row_tile(torch.float32, 1, steady_product(torch.float32, 1)) == 1


def test_a_processor_that_cannot_has_the_product_of_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "row_product_supported", lambda: False)
    assert steady_product(torch.float32, 1) is steady_product(torch.float32, 2)


def test_a_processor_that_can_has_another_product_in_float32_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "row_product_supported", lambda: True)
    assert steady_product(torch.float32, 1) is not steady_product(torch.float32, 2)


def test_the_native_product_is_refused_by_a_processor_that_cannot() -> None:
    if has_native_product(torch.float32, 1):
        pytest.skip("this processor has AVX2 and FMA")
    with pytest.raises(NativeError):
        row_product(0, 0, 0, 1, 1, 1)


def cancelling(rows: int, inner: int, sign: int, dtype: torch.dtype) -> torch.Tensor:
    """Products of one of each sign are 0 but for the rounding on the way, which another order changes in every digit:
    results in bfloat16 show it once in ten thousand otherwise."""
    half = torch.randn(rows, inner // 2, generator=torch.Generator().manual_seed(3 + sign)).to(dtype)
    order = torch.randperm(inner // 2, generator=torch.Generator().manual_seed(5))
    return torch.cat((half, sign * half[:, order]), dim=1)


@kinds
@pytest.mark.parametrize(("outer", "inner"), [(256, 512), (512, 1024), (512, 2048), (192, 4864), (128, 8960)])
def test_no_row_depends_on_the_number_of_rows_however_many_and_long_they_are(
    dtype: torch.dtype, threads: int, outer: int, inner: int
) -> None:
    x, weight = cancelling(600, inner, 1, dtype), cancelling(outer, inner, -1, dtype)
    product = steady(dtype, threads)
    whole = product(x, weight, None)
    assert 0 < whole.float().abs().max() < 0.1
    for first, count in ((0, 1), (0, 5), (7, 16), (0, 17), (30, 48), (0, 64), (5, 100), (0, 129), (0, 256), (64, 333)):
        assert torch.equal(product(x[first : first + count], weight, None), whole[first : first + count]), (
            first,
            count,
        )


@kinds
def test_rows_that_do_not_lie_side_by_side_are_the_same_product(dtype: torch.dtype, threads: int) -> None:
    x, weight, _ = data(dtype)
    apart = torch.stack((x, x), dim=2)[:, :, 0]
    assert not apart.is_contiguous()
    product = steady_product(dtype, threads)
    assert torch.equal(product(apart[:8], weight, None), product(x[:8], weight, None))


@kinds
def test_no_row_depends_on_the_number_of_rows_where_weights_do_not_lie_side_by_side(
    dtype: torch.dtype, threads: int
) -> None:
    x, weight, bias = data(dtype)
    product = steady(dtype, threads)
    for apart in (weight[:, :1000], weight[::2], weight.t().contiguous().t()):
        inner, outer = apart.shape[1], len(apart)
        whole = product(x[:, :inner], apart, bias[:outer])
        assert_is_product(whole, x[:, :inner], apart, bias[:outer])
        for count in COUNTS:
            assert torch.equal(product(x[:count, :inner], apart, bias[:outer]), whole[:count])


@pytest.mark.parametrize("count", [1, 5, 13, 100])  # streamed; packed
def test_in_float32_helpers_take_outputs_and_give_the_same_bits(count: int) -> None:
    if not has_native_product(torch.float32, 1):
        pytest.skip("this processor has no AVX2 and FMA")
    generator = torch.Generator().manual_seed(7)
    try:
        for outer in (33, 200, 1000, 4099):  # fewer outputs than a part has, no multiple of it, many
            x, weight = torch.randn(count, 600, generator=generator), torch.randn(outer, 600, generator=generator)
            set_product_helpers(0)
            alone = steady_product(torch.float32, 1)(x, weight, None)
            for helpers in (1, 2, 6):
                set_product_helpers(helpers)
                assert torch.equal(steady_product(torch.float32, 1)(x, weight, None), alone), (outer, helpers)
    finally:
        set_product_helpers(0)
