"""Kubernetes' notation for bytes and durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_operator.spec.quantity import format_duration, format_quantity, parse_duration, parse_quantity


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_number_of_bytes_survives_being_written_and_read(size: int) -> None:
    assert parse_quantity(format_quantity(size)) == size


@given(st.integers(min_value=0, max_value=2**20 - 1), st.sampled_from(["Ki", "Mi", "Gi", "Ti"]))
def test_a_written_quantity_is_never_longer_than_the_one_read(number: int, suffix: str) -> None:
    assert len(format_quantity(parse_quantity(f"{number}{suffix}"))) <= len(f"{number}{suffix}") + 2


@given(st.integers(min_value=0, max_value=10**15))
def test_a_duration_survives_being_written_and_read_to_the_nanosecond(nanoseconds: int) -> None:
    seconds = nanoseconds / 1e9
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-12, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), (4096, 4096), ("1k", 1000), ("1Ki", 1024), ("1.5Gi", 3 << 29), ("512Mi", 512 << 20), ("2G", 2 * 10**9)],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: object, size: int) -> None:
    assert parse_quantity(text) == size


@pytest.mark.parametrize(
    "text", ["", "Mi", "-1Mi", "1 Mi", "1mi", "1MB", "1.0001Ki", "1e3x", "٣Mi", "9Ei", True, 1.5, None]
)
def test_an_invalid_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r"quantity|whole number|too large"):
        parse_quantity(text)


@pytest.mark.parametrize(("text", "seconds"), [("100ms", 0.1), ("10s", 10), ("1m30s", 90), ("1.5s", 1.5), ("1h", 3600)])
def test_durations_are_read_as_kubernetes_reads_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", 10, "s", "10 s", "-1s", "10s ", "10sx", "1d", None])
def test_an_invalid_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)
