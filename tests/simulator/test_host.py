"""Host memory for weights: what is there is there at once, the rest is read from the node's one disk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulator.runs import GB, LOAD_S, SLO, arrivals, plain_device, run

from aegaeon_scheduler.core.domain import ModelName
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.engine.host_cache import HostCache
from aegaeon_simulator.settings import Split
from aegaeon_simulator.workload.model import in_order

A, B, C = (ModelName(name) for name in "abc")


def test_cached_models_load_at_once_and_the_least_recently_used_is_evicted() -> None:
    clock = Clock()
    cache = HostCache(clock, 20, 10.0)
    cache.warm([(A, 10), (B, 10), (C, 10)])
    came: list[tuple[str, float]] = []

    def want(name: ModelName) -> bool:
        at_once = cache.want(name, 10, lambda: came.append((name, clock.now)))
        while clock.step():
            pass
        return at_once

    assert [want(A), want(C), want(A), want(B)] == [True, False, True, False]
    assert came == [(A, 0.0), (C, 1.0), (A, 1.0), (B, 2.0)]


def test_two_loads_of_the_same_model_wait_for_one_read() -> None:
    clock = Clock()
    cache = HostCache(clock, 20, 10.0)
    came: list[float] = []
    for _ in range(2):
        cache.want(A, 10, lambda: came.append(clock.now))
    while clock.step():
        pass
    assert came == [1.0, 1.0]


def test_a_load_from_disk_takes_the_disks_time_before_the_links() -> None:
    device = replace(plain_device(step_s=0.01, prefill_s=0.02), host_cache_bytes=10 * GB, disk_bytes_per_s=5e9)
    workload = in_order(("plain",) * 2, [*arrivals([0.0], 2, 0), *arrivals([10.0], 2, 1)])
    held, fetched = run("paper", workload, device).requests
    assert held.times[0] == pytest.approx(LOAD_S + 0.02)
    assert fetched.times[0] == pytest.approx(2.0 + LOAD_S + 0.02)


def test_a_load_that_bypasses_the_host_cache_evicts_nothing() -> None:
    clock = Clock()
    reports: list[tuple[ModelName, ...]] = []
    cache = HostCache(clock, 20, 10.0, reports.append)
    cache.warm([(A, 10)])
    for name in (B, C):
        cache.want(name, 10, lambda: None, past=True)
        while clock.step():
            pass
    assert reports == [(A,), (A, B)]


def test_models_held_by_two_nodes_and_their_devices_together_are_served_as_if_all_were_in_memory() -> None:
    device = replace(
        plain_device(step_s=0.01, prefill_s=0.02), host_cache_bytes=40 * GB, disk_bytes_per_s=5e9, gpus_per_node=2
    )
    work = [a for m in range(16) for a in arrivals([0.1 + 1.1 * m + 25.0 * k for k in range(4)], 50, m)]
    held = run("slack", in_order(("plain",) * 16, work), device, split=Split(unified=4))
    assert held.attainment(SLO).token > 0.95
    inclusive = run("paper", in_order(("plain",) * 16, work), device, split=Split(unified=4))
    assert sum(u.disk_loads for u in held.usage) == 8 < sum(u.disk_loads for u in inclusive.usage)


def test_what_room_a_node_has_beside_its_share_of_the_models_holds_the_others_as_well() -> None:
    device = plain_device(step_s=0.01, prefill_s=0.02)
    device = replace(device, host_cache_bytes=40 * GB, disk_bytes_per_s=5e9, gpus_per_node=1)
    work = [a for m in range(4) for a in arrivals([0.1 + 0.05 * k for k in range(8)], 50, m)]
    outcome = run("paper", in_order(("plain",) * 4, work), device, split=Split(unified=2))
    assert sum(u.disk_loads for u in outcome.usage) == 0
