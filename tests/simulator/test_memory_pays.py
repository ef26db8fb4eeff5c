"""More memory of a host costs no tokens: a preemption that costs more than it saves is not made."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

from simulator.runs import GB, SLO

from aegaeon_simulator.devices import read_device
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Lengths, poisson


def tokens_on_time(host_gb: int, seed: int) -> float:
    """Six 13B models on two engines that hold one each; `host_gb` of an engine for KV that is preempted."""
    work = poisson(Lengths.packaged(), models=6, rate=0.5, duration_s=40.0, seed=seed, kind=lambda model: "llama2_13b")
    device = replace(read_device("h800-policy"), model_bytes=34 * GB, host_kv_bytes=host_gb * GB)
    return simulate(Run(Settings("slack", Split(unified=2), SLO), work, device, seed)).attainment(SLO).token


def test_room_for_what_is_preempted_never_costs_more_than_noise():
    little, much = (mean(tokens_on_time(host_gb, seed) for seed in (1, 2, 3)) for host_gb in (8, 64))
    assert much >= little - 0.01
    assert much >= 0.84
