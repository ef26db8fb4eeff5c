"""Products of few rows: as torch's, and each row the same bits whatever the number of rows."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from aegaeon_native import FEW_ROWS
from aegaeon_sidecar.backends import rows
from aegaeon_sidecar.backends.rows import TURNED_ROWS, few_rows_product, padded_linear, row_tile, steady_linear

COUNTS = (1, 2, 3, 8, 17, TURNED_ROWS - 1, TURNED_ROWS, TURNED_ROWS + 1, 200)
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1.0, torch.float16: 0.1}  # of sums of about 100, rounded twice


def data(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((200, 1024), (96, 1024), (96,)))
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_product_is_torchs_for_every_number_of_rows_with_and_without_a_bias(dtype: torch.dtype) -> None:
    x, weight, bias = data(dtype)
    few = few_rows_product(dtype)
    tile = row_tile(dtype, 1, few) or 1
    for count in (0, *COUNTS):
        for other in (None, bias):
            expected = linear(x[:count].float(), weight.float(), None if other is None else other.float())
            product = padded_linear(x[:count], weight, other, tile, few)
            assert product.dtype == dtype
            torch.testing.assert_close(product.float(), expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_no_row_of_a_decode_depends_on_the_number_of_rows(dtype: torch.dtype) -> None:
    x, weight, bias = data(dtype)
    few = few_rows_product(dtype)
    tile = row_tile(dtype, 1, few)
    if not tile:
        pytest.skip("this machine's matrix library has no number of rows from which its sums keep their order")
    whole = padded_linear(x[:TURNED_ROWS], weight, bias, tile, few)
    for count in COUNTS[:7]:
        assert torch.equal(padded_linear(x[:count], weight, bias, tile, few), whole[:count])


def cancelling(rows: int, inner: int, sign: int, dtype: torch.dtype) -> torch.Tensor:
    """Products of one of each sign are 0 but for the rounding on the way, which another order changes in every digit:
    results in bfloat16 show it once in ten thousand otherwise."""
    half = torch.randn(rows, inner // 2, generator=torch.Generator().manual_seed(3 + sign)).to(dtype)
    order = torch.randperm(inner // 2, generator=torch.Generator().manual_seed(5))
    return torch.cat((half, sign * half[:, order]), dim=1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("outer", "inner"), [(256, 512), (512, 1024), (512, 2048), (192, 4864), (128, 8960)])
def test_no_row_depends_on_the_number_of_rows_however_many_and_long_they_are(
    dtype: torch.dtype, outer: int, inner: int
) -> None:
    x, weight = cancelling(600, inner, 1, dtype), cancelling(outer, inner, -1, dtype)
    few = few_rows_product(dtype)
    tile = row_tile(dtype, 1, few)
    if not tile:
        pytest.skip("this machine's matrix library has no number of rows from which its sums keep their order")
    whole = padded_linear(x, weight, None, tile, few)
    assert 0 < whole.float().abs().max() < 0.1
    for first, count in ((0, 1), (0, 5), (7, 16), (0, 17), (30, 48), (0, 64), (5, 100), (0, 129), (0, 256), (64, 333)):
        part = padded_linear(x[first : first + count], weight, None, tile, few)
        assert torch.equal(part, whole[first : first + count]), (first, count)


@pytest.mark.parametrize(("outer", "inner"), [(96, 1024), (100, 50), (37, 1500), (256, 3000)])
def test_a_row_has_the_same_bits_in_the_native_product_and_in_one_of_many_rows(outer: int, inner: int) -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((200, inner), (outer, inner), (outer,)))
    tile = row_tile(torch.float32, 1, few_rows_product(torch.float32))
    if not tile:
        pytest.skip("this machine's matrix library has no number of rows from which its sums keep their order")
    for other in (None, bias):
        whole = steady_linear(x, weight, other, tile)
        for count in range(1, FEW_ROWS + 2):
            assert torch.equal(steady_linear(x[:count], weight, other, tile), whole[:count])


def test_where_sums_are_added_in_another_order_rows_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PIECES", ())
    rows._piece.cache_clear()
    x, weight, bias = data(torch.float32)
    tile = row_tile(torch.float32, 1, few_rows_product(torch.float32)) or 1
    padded = padded_linear(x[:1], weight, bias, tile, few_rows_product(torch.float32))
    assert torch.equal(steady_linear(x[:1], weight, bias, tile), padded)
    rows._piece.cache_clear()


def test_rows_that_do_not_lie_side_by_side_are_the_same_product() -> None:
    x, weight, _ = data(torch.float32)
    few = few_rows_product(torch.float32)
    apart = torch.stack((x, x), dim=2)[:, :, 0]
    assert not apart.is_contiguous()
    assert torch.equal(few(apart[:8], weight, None), few(x[:8], weight, None))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_no_row_depends_on_the_number_of_rows_where_weights_do_not_lie_side_by_side(dtype: torch.dtype) -> None:
    x, weight, bias = data(dtype)
    tile = row_tile(dtype, 1, few_rows_product(dtype))
    if not tile:
        pytest.skip("this machine's matrix library has no number of rows from which its sums keep their order")
    for apart in (weight[:, :1000], weight[::2], weight.t().contiguous().t()):
        inner, outer = apart.shape[1], len(apart)
        whole = steady_linear(x[:, :inner], apart, bias[:outer], tile)
        for count in COUNTS:
            assert torch.equal(steady_linear(x[:count, :inner], apart, bias[:outer], tile), whole[:count])


def test_a_large_weight_is_tried_in_part_and_the_native_product_is_right_of_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory of a whole vocabulary's weight is not there a second time."""
    tried: list[int] = []
    product = rows._few_rows

    def counted(x: torch.Tensor, weight: torch.Tensor, piece: int) -> torch.Tensor:
        tried.append(weight.numel())
        return product(x, weight, piece)

    monkeypatch.setattr(rows, "_few_rows", counted)
    rows._piece.cache_clear()
    generator = torch.Generator().manual_seed(4)
    x, weight = (torch.randn(count, 600, generator=generator) for count in (80, 20_000))
    tile = row_tile(torch.float32, 1, few_rows_product(torch.float32))
    if not tile:
        pytest.skip("this machine's matrix library has no number of rows from which its sums keep their order")
    whole = steady_linear(x, weight, None, tile)
    assert not tried
    for count in (1, FEW_ROWS):
        tried.clear()
        assert torch.equal(steady_linear(x[:count], weight, None, tile), whole[:count])
        assert all(size <= 4096 * 600 or size == weight.numel() for size in tried)
        assert sum(size == weight.numel() for size in tried) <= 1
