"""First guesses from data sheets are near what was measured; constants that are given come first."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.core.config import ConstantsOf, LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.datasheet import guess, sheet_of
from aegaeon_scheduler.core.domain import Footprint, KvShape, ModelName
from aegaeon_scheduler.core.estimate import Estimate, Estimates
from aegaeon_simulator.devices import read_device

H800 = "NVIDIA H800, 80 GiB"
MEASURED = read_device("h800-policy").kinds


def footprint(kind: str) -> Footprint:
    sizes = MEASURED[kind]
    return Footprint(sizes.weight_bytes, 1, KvShape("kv"), 16 * sizes.kv_bytes_per_token, 16, 1 << 20)


@pytest.mark.parametrize("kind", MEASURED)
def test_a_guess_is_within_a_factor_of_two_of_what_was_measured(kind: str):
    constants = guess(footprint(kind), H800)
    assert constants is not None
    guessed, measured = Estimate(constants), Estimate(MEASURED[kind].latency)
    for context, batch in ((500, 1), (4000, 8), (16_000, 32)):
        assert 0.5 < guessed.step_s(context, batch) / measured.step_s(context, batch) < 2.0
    for tokens in (100, 1000, 8000):
        assert 0.5 < guessed.prefill_s(tokens) / measured.prefill_s(tokens) < 2.0
    assert 0.5 < guessed.load_s(10**10) / measured.load_s(10**10) < 2.0


@pytest.mark.parametrize(
    ("device", "memory"),
    [
        ("NVIDIA H100 80GB HBM3, 79 GiB", 3.35e12),
        ("NVIDIA H100 PCIe, 79 GiB", 2.0e12),
        ("NVIDIA A100-SXM4-40GB, 40 GiB", 1.555e12),
        ("NVIDIA A10, 22 GiB x 4", 2.4e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb, 10 GiB", None),
        ("cpu", None),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives(device: str, memory: float | None):
    sheet = sheet_of(device)
    assert (None if sheet is None else sheet.memory) == (None if memory is None else pytest.approx(memory))


def test_makes_have_prices_of_their_own_and_given_constants_come_first():
    given = LatencyConstants(a=0.5)
    estimates = Estimates(SchedulerConfig(constants=(ConstantsOf("m", "NVIDIA A10, 22 GiB", given),)))
    model = ModelName("m")
    estimates.size(model, footprint("qwen2_5_7b"))
    assert estimates.of(model, "NVIDIA A10, 22 GiB").step_s(0, 0) == 0.5
    assert estimates.of(model, "NVIDIA L4, 22 GiB").step_s(0, 1) > 5 * estimates.of(model, H800).step_s(0, 1)
    assert estimates.of(model, "cpu").step_s(0, 0) == LatencyConstants().a
