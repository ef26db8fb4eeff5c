"""Refusals of what would come too late: at once where the line says so, else when the bound on TTFT is over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_core.test_scheduler import CACHED, E0, E1, Brain, of, submitted, up
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ModelName, RejectCode, Role
from aegaeon_scheduler.core.errors import ConfigError
from aegaeon_scheduler.core.policies.slack.table import Line
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_simulator.pool.world import World

FEASIBLE = SchedulerConfig(admission="feasible", bound_ttft=1.5)


def crowded(admission: str) -> World:
    """One engine with room for one model, eight models that all want it at once and go on wanting it."""
    policy = SlackSettings()
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    config = SchedulerConfig(policy=policy, latency=latency, hold_s=1e9, admission=admission, refine=False)
    world = small_world([Role.UNIFIED], models=8, slabs=130, config=config)
    for i in range(160):
        world.request(f"r{i}", ModelName(f"m{i % 8}"), 50, 40, at=0.1 * i)
    world.run(200)
    return world


def test_without_admission_control_every_request_is_served_and_some_very_late():
    world = crowded("none")
    assert not any(c.rejected for c in world.clients.values())
    assert max(c.times[0] for c in world.clients.values()) > 2 * 2.0


def test_with_admission_control_admitted_requests_meet_twice_the_ttft_objective():
    world = crowded("feasible")
    refused = [c for c in world.clients.values() if c.rejected]
    served = [c for c in world.clients.values() if c.times]
    assert 0 < len(refused) < 130
    assert len(refused) + len(served) == 160
    assert max(c.times[0] for c in served) <= 2 * 2.0
    assert all(c.rejected.code is RejectCode.OVERLOADED and c.rejected.retry_after_s > 0 for c in refused)


def test_refused_requests_count_as_never_served():
    world = crowded("feasible")
    kept = [c for c in world.clients.values() if not c.rejected]
    assert world.attainment().requests == 160
    assert world.attainment().request < len(kept) / 160 + 1e-9


def test_a_queued_prompt_is_refused_when_its_bound_expires_and_not_before():
    brain = Brain(FEASIBLE)
    brain.on(submitted())
    assert of(brain.on(ev.Tick(), now=1.4), cmd.Reject) == []
    refused = of(brain.on(ev.Tick(), now=1.5), cmd.Reject)
    assert [r.code for r in refused] == [RejectCode.OVERLOADED]


def test_a_sequence_with_tokens_delivered_is_not_refused_for_being_late():
    brain = Brain(FEASIBLE)
    brain.on(submitted(epoch=2, prefix=5), now=20.0)
    assert of(brain.on(ev.Tick(), now=25.0), cmd.Reject) == []


STARTING = SchedulerConfig(hold_s=5.0, start_s=60.0)


def test_requests_waiting_for_a_starting_engine_are_held_for_the_start_timeout():
    brain = Brain(STARTING)
    assert of(brain.on(submitted()), cmd.Wake)[0].at == 60.0
    assert of(brain.on(ev.Tick(), now=59.0), cmd.Reject) == []
    assert [r.code for r in of(brain.on(ev.Tick(), now=60.0), cmd.Reject)] == [RejectCode.OVERLOADED]


def test_requests_keep_waiting_when_the_only_engine_leaves_until_another_starts():
    brain = Brain(STARTING)
    brain.all(up(), CACHED, submitted("runs"))
    brain.on(ev.InstanceDraining(E0))
    brain.on(submitted("late"), now=0.0)
    brain.on(ev.InstanceDown(E0), now=1.0)
    assert of(brain.on(ev.Tick(), now=6.0), cmd.Reject) == []
    brain.on(up(incarnation="2"), now=40.0)
    assert len(of(brain.on(CACHED, now=41.0), cmd.Open)) > 0


def test_feasible_admission_does_not_apply_to_requests_waiting_for_a_start():
    brain = Brain(replace(FEASIBLE, start_s=60.0))
    brain.on(submitted())
    assert of(brain.on(ev.Tick(), now=30.0), cmd.Reject) == []


@pytest.mark.parametrize("alone", [Role.PREFILL, Role.DECODE])
def test_one_role_alone_serves_no_request_and_both_together_do(alone):
    brain = Brain(STARTING)
    brain.on(replace(up(), role=alone))
    brain.on(CACHED)
    assert of(brain.on(submitted("alone")), cmd.Wake)[0].at == 60.0
    other = Role.DECODE if alone is Role.PREFILL else Role.PREFILL
    brain.on(replace(up(instance=E1), role=other))
    brain.on(replace(CACHED, instance=E1))
    assert of(brain.on(submitted("both")), cmd.Wake)[0].at == 5.0


def test_an_unknown_kind_of_admission_is_refused_by_name():
    with pytest.raises(ConfigError, match="'maybe' is unknown; known: none, feasible"):
        Scheduler(SchedulerConfig(admission="maybe"))


def test_the_queue_is_assumed_to_move_at_its_recent_rate():
    line = Line()
    assert line.wait_s(25.0, 0, 0.0) == 0.0
    for i in range(300):
        line.passed([(0, due) for due in (100.0, 200.0, 300.0, 400.0)], i % 2, now=0.1 * i)
    assert line.wait_s(250.0, 0, 30.0) == pytest.approx(2 / 5.0, rel=0.1)
    assert line.wait_s(50.0, 0, 30.0) == 0.0


def test_late_requests_do_not_delay_others():
    line = Line()
    line.passed([(0, 1.0), (0, 2.0), (0, 9.0)], 5, now=5.0)
    assert line.wait_s(8.0, 0, 5.0) == 0.0


def test_a_new_pool_is_assumed_fast():
    line = Line()
    line.passed([(0, 10.0), (0, 11.0), (0, 12.0)], 1, now=0.5)
    assert line.wait_s(13.0, 0, 0.5) < 1.0


def test_a_tier_waits_for_those_above_it_and_for_none_below():
    line = Line()
    line.passed([(-1, 9.0), (0, 7.0), (1, 6.0)], 0, now=5.0)
    waits = [line.wait_s(8.0, level, 5.0) for level in (-1, 0, 1)]
    assert waits[0] == 0.0 < waits[1] < waits[2]
