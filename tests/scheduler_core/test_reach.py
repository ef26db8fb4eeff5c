"""Policy aegaeon where host memory does not hold every model: devices and hosts as one cache, one rule per test."""

from __future__ import annotations

from itertools import pairwise

import pytest
from scheduler_core.test_slack import Watched

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import ModelName, Role
from aegaeon_scheduler.core.hosts import Hosts
from aegaeon_scheduler.core.policies.slack import weights


def test_a_node_that_did_not_report_its_models_is_assumed_to_hold_all():
    hosts = Hosts()
    assert not hosts.limited
    assert hosts.has("node-0", ModelName("m0"))
    hosts.report("node-0", [ModelName("m1")])
    assert hosts.limited
    assert not hosts.has("node-0", ModelName("m0"))
    assert hosts.has("node-1", ModelName("m0"))


def test_a_model_runs_on_the_node_whose_memory_holds_it():
    w = Watched([Role.UNIFIED] * 2, nodes=2, host_models=2, slabs=450)
    for i in range(4):  # node-0 begins with m0 and m2, node-1 with m1 and m3
        w.ask(f"r{i}", i, 50, 60)
    w.world.run(20)
    assert w.all_finished()
    assert {b.model for b in w.bodies(cmd.Load, "e0")} == {"m0", "m2"}
    assert {b.model for b in w.bodies(cmd.Load, "e1")} == {"m1", "m3"}
    assert sum(e.state.usage.disk_loads for e in w.world.engines.values()) == 0


def test_the_only_copy_of_a_model_is_evicted_last():
    w = Watched([Role.UNIFIED], models=3, host_models=2, slabs=250)
    w.ask("from disk", 2, 50, 5)
    for i in range(6):
        w.ask(f"r{i}", i % 2, 50, 20, at=4.0 + i)
    w.world.run(30)
    assert w.all_finished()
    assert len(w.bodies(cmd.Load)) > 3
    assert "m2" not in {b.model for b in w.bodies(cmd.Unload)}


def test_an_only_copy_is_evicted_for_a_model_that_could_never_run_otherwise():
    w = Watched([Role.UNIFIED], models=3, host_models=1, slabs=130)
    for i in range(6):
        w.ask(f"r{i}", i % 3, 50, 20, at=0.1 + 5 * i)
    w.world.run(60)
    assert w.all_finished()
    assert {"m1", "m2"} <= {b.model for b in w.bodies(cmd.Unload)}


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("slabs", [130, 250, 450, 900])
def test_requests_that_are_late_before_their_models_are_read_are_served_as_well(engines: int, slabs: int):
    w = Watched([Role.UNIFIED] * engines, models=20, host_models=9, slabs=slabs)
    for i in range(20):  # at one instant: the disk reads one model a second
        w.ask(f"r{i}", i, 50, 8)
    w.world.run(60)
    assert w.all_finished()


def test_a_disk_reads_for_one_load_at_a_time():
    w = Watched([Role.UNIFIED] * 3, models=4, host_models=1, slabs=130)
    for i in range(1, 4):
        w.ask(f"r{i}", i, 50, 20)
    w.world.run(30)
    assert w.all_finished()
    loads = [t for t, s in w.sends if isinstance(s.body, cmd.Load)]
    assert all(b - a > 0.9 for a, b in pairwise(loads))


def test_two_engines_that_need_the_same_only_copy_share_it():
    w = Watched([Role.UNIFIED] * 2, models=3, host_models=2, slabs=250)
    for i in range(4):
        w.ask(f"r{i}", 2, 50, 20, at=0.1 + 2.0 * i)
    w.world.run(30)
    assert w.all_finished()
    assert len([b for b in w.bodies(cmd.Load) if b.model == "m2"]) == 1


def test_an_idle_model_in_host_memory_is_evicted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weights, "STALE_S", 10.0)
    w = Watched([Role.UNIFIED], models=3, host_models=2, slabs=130)
    w.ask("one", 0, 50, 5)
    w.ask("two", 2, 50, 5, at=2.0)
    w.ask("three", 0, 50, 5, at=12.5)
    w.ask("four", 2, 50, 5, at=14.0)
    w.world.run(30)
    assert w.all_finished()
    assert [b.past_host for b in w.bodies(cmd.Load) if b.model == "m2"] == [True, False]
