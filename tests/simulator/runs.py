"""Small devices, workloads and runs for the simulator's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aegaeon_scheduler.core.config import LatencyConstants
from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import Device, Kind, read_device
from aegaeon_simulator.results.outcome import Outcome
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Arrival, Workload

SLO = Slo(10.0, 0.1)
LOAD_S = 0.5
GB = 1_000_000_000


def plain_device(*, step_s: float, prefill_s: float, per_request_s: float = 0.0) -> Device:
    """One kind, `plain`: every prompt takes as long, every step too but for the batch; loads take LOAD_S."""
    latency = LatencyConstants(step_s, 0.0, per_request_s, prefill_s, 0.0, 0.0, 0.0, 10 * GB / LOAD_S, 1e15)
    kinds = {"plain": Kind("plain", 10 * GB, 1000, latency)}
    return replace(read_device("h800-policy"), kinds=kinds, change_s=0.0, load_stall_bytes_per_s=0.0)


def arrivals(times: Sequence[float], length: int, model: int = 0) -> list[Arrival]:
    """Requests of one token in and `length` out."""
    return [Arrival(t, model, 1, length) for t in times]


def run(
    policy: str,
    workload: Workload,
    device: Device,
    *,
    split: Split = Split(unified=1),  # noqa: B008 (frozen)
    slo: Slo = SLO,
    delay_s: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """One run, without a bar."""
    return simulate(Run(Settings(policy, split, slo, delay_s=delay_s), workload, device, seed))
