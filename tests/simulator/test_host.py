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


def test_what_is_held_is_there_at_once_and_the_least_recent_makes_room() -> None:
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


def test_two_who_want_the_same_wait_for_one_read() -> None:
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


def test_a_load_past_the_host_takes_nobodys_place() -> None:
    clock = Clock()
    told: list[tuple[ModelName, ...]] = []
    cache = HostCache(clock, 20, 10.0, told.append)
    cache.warm([(A, 10)])
    for name in (B, C):
        cache.want(name, 10, lambda: None, past=True)
        while clock.step():
            pass
    assert told == [(A,), (A, B)]


def test_what_two_nodes_and_their_devices_hold_together_is_served_as_if_it_were_all_in_memory() -> None:
    device = replace(
        plain_device(step_s=0.01, prefill_s=0.02), host_cache_bytes=40 * GB, disk_bytes_per_s=5e9, gpus_per_node=2
    )
    work = [a for m in range(16) for a in arrivals([0.1 + 1.1 * m + 25.0 * k for k in range(4)], 50, m)]
    held = run("slack", in_order(("plain",) * 16, work), device, split=Split(unified=4))
    assert held.attainment(SLO).token > 0.95
    inclusive = run("paper", in_order(("plain",) * 16, work), device, split=Split(unified=4))
    assert sum(u.disk_loads for u in held.usage) == 8 < sum(u.disk_loads for u in inclusive.usage)
