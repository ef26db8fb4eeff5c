"""Refusals of what would come too late: at once where the line says so, else when the bound on TTFT is over."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from scheduler_core.test_scheduler import CACHED, E0, E1, Brain, of, submitted, up
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ModelName, RejectCode, Role, Slo, Terms, Tier
from aegaeon_scheduler.core.errors import ConfigError
from aegaeon_scheduler.core.policies.slack.admission import SOON_SHARE, Demand, Need, lives
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.pool.client import Client
from aegaeon_simulator.pool.world import World

LATENCY = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
FEASIBLE = SchedulerConfig(admission="feasible", bound_ttft=1.5)


def crowded(admission: str) -> World:
    """One engine with room for one model, eight models that all want it at once and go on wanting it."""
    policy = SlackSettings()
    config = SchedulerConfig(policy=policy, latency=LATENCY, hold_s=1e9, admission=admission, refine=False)
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


def test_after_late_requests_no_less_is_admitted_than_at_first_and_after_a_quiet_hour_no_more_than_fits():
    gate = crowded("feasible").scheduler._policy._gate
    before = gate._soon
    gate._learn(3600.0)  # what still runs is late by then
    assert gate._late
    assert before > gate._soon == SOON_SHARE
    gate._learn(7200.0)
    assert gate._soon == 1.0


@pytest.mark.parametrize("admission", ["none", "feasible"])
def test_no_request_is_refused_for_having_waited_while_it_may_be_served_in_time(admission: str) -> None:
    config = SchedulerConfig(latency=LATENCY, hold_s=1.0, admission=admission, refine=False)
    world = small_world([Role.UNIFIED], models=8, slabs=130, config=config, ttfts=(20.0,))
    for i in range(160):
        client = world.request(f"r{i}", ModelName(f"m{i % 8}"), 50, 40, at=0.1 * i)
        client.defer_s = 30.0 * (i % 2)
    world.run(200)
    waited = [c.rejected_at - c.arrival for c in world.clients.values() if c.rejected and c.rejected_at > c.arrival]
    assert not [at for at in waited if at < 20.0]
    assert max(c.times[0] for c in world.clients.values() if c.times) > 2.0, "some wait for longer than hold_s"


def test_one_that_no_engine_serves_is_refused_after_hold_s_though_it_is_not_due() -> None:
    world = small_world([Role.DECODE], config=SchedulerConfig(latency=LATENCY, hold_s=1.0), ttfts=(20.0,))
    client = world.request("r", ModelName("m0"), 50, 40, at=1.0)
    world.run(30)
    assert client.rejected is not None
    assert client.rejected_at - client.arrival < 1.5


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


def need(level: int = 0, slack_s: float = 2.0, prompts_s: float = 0.0) -> Need:
    """A group of two whose step takes a tenth of TBT."""
    return Need(level, step_s=0.01, tbt_s=0.1, slack_s=slack_s, alive=2, tokens=100.0, prompts_s=prompts_s)


def test_a_group_needs_nothing_before_its_slack_is_used_up_and_then_a_step_each_tbt():
    assert need(slack_s=5.0, prompts_s=0.2).within(4.0) == 0.2
    assert need(slack_s=1.0).within(2.0) == pytest.approx(0.01 * 10, rel=0.02)


def test_more_members_live_longer_and_none_longer_than_what_is_due():
    assert lives(100.0, 1) == pytest.approx(100.0)
    assert lives(100.0, 2) == pytest.approx(150.0)
    assert lives(100.0, 8, due=10.0) <= 10.0


def test_what_is_admitted_between_two_passes_counts_at_once_and_the_next_pass_begins_anew():
    demand = Demand()
    demand.measure([need(), need(level=1)])
    before = demand.within(0, 10.0)
    demand.add(need())
    assert demand.within(0, 10.0) == pytest.approx(2 * before)
    demand.measure([need()])
    assert demand.within(0, 10.0) == pytest.approx(before)


def test_a_tier_counts_the_needs_of_those_above_it_and_of_none_below():
    demand = Demand()
    demand.measure([need(level) for level in (-1, 0, 1)])
    assert [demand.within(level, 10.0) / need().within(10.0) for level in (-1, 0, 1)] == pytest.approx([1, 2, 3])


def flooded(rate: float, models: int, engines: int = 2, terms: dict[ModelName, Terms] | None = None) -> World:
    """For ten seconds, so many requests a second of models that fit on the engines together."""
    config = SchedulerConfig(latency=LATENCY, hold_s=1e9, admission="feasible", refine=False)
    world = small_world([Role.UNIFIED] * engines, models=models, slabs=900, config=config, terms=terms or {})
    for i in range(int(10 * rate)):
        world.request(f"r{i}", ModelName(f"m{i % models}"), 400, 40, at=i / rate)
    world.run(100)
    return world


def refusals(world: World) -> list[Client]:
    return [client for client in world.clients.values() if client.rejected]


def at_once(client: Client) -> bool:
    return client.rejected_at <= client.arrival + 0.1


def on_time(clients: list[Client]) -> float:
    return attainment((c.times, Slo(2.0, 0.1), c.length) for c in clients).token


@pytest.mark.parametrize("models", [1, 4])
def test_a_flood_is_refused_at_once_and_those_admitted_are_on_time(models):
    world = flooded(100.0, models)
    refused = refusals(world)
    assert 0.2 < len(refused) / len(world.clients) < 0.9
    assert sum(map(at_once, refused)) >= 0.9 * len(refused)
    assert on_time([c for c in world.clients.values() if not (c.rejected and at_once(c))]) >= 0.95


def test_nothing_is_refused_where_there_is_time_for_all():
    assert not refusals(flooded(20.0, 4))


def test_many_models_asked_at_one_moment_are_admitted_no_further_than_engines_last():
    config = SchedulerConfig(latency=LATENCY, hold_s=1e9, admission="feasible", refine=False)
    world = small_world([Role.UNIFIED] * 2, models=60, slabs=1800, host_slabs=4000, config=config)
    for i in range(60):
        world.request(f"r{i}", ModelName(f"m{i}"), 50, 200, at=0.5 + 1e-4 * i)
    world.run(200)
    assert 10 < len(refusals(world)) < 55
    assert all(map(at_once, refusals(world)))


def test_a_lower_tier_is_refused_first():
    terms = {ModelName("m0"): Terms(Tier.INTERACTIVE)}
    world = flooded(50.0, 5, engines=1, terms=terms)
    by_model = [sum(c.model == f"m{i}" for c in refusals(world)) for i in range(5)]
    assert by_model[0] < 0.5 * min(by_model[1:])


def steep(seed: int) -> World:
    """Each step takes six tenths of TBT: an engine has time for one group, whatever share of the others is idle."""
    latency = replace(LATENCY, a=0.06)
    config = SchedulerConfig(latency=latency, hold_s=1e9, admission="feasible", refine=False)
    world = small_world([Role.UNIFIED] * 3, models=12, slabs=900, config=config)
    draw = Random(seed)
    for i in range(70):
        world.request(f"r{i}", ModelName(f"m{draw.randrange(12)}"), 50, 150, at=draw.uniform(0.0, 60.0))
    world.run(200)
    return world


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_where_an_engine_has_time_for_one_group_no_two_are_admitted_for_it(seed):
    world = steep(seed)
    refused = refusals(world)
    assert refused
    assert all(map(at_once, refused))
    admitted = [client for client in world.clients.values() if not client.rejected]
    assert len(admitted) >= 12
    assert on_time(admitted) >= 0.95
