"""A model is served by a pair of engines that can hand KV over: where there is none, nothing is prefilled, and what
waits has an answer in time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import examples, small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, policy_settings
from aegaeon_scheduler.core.domain import InstanceId, ModelName, Phase, RejectCode, Role
from aegaeon_simulator.pool.client import Client

P, D, HOLD_S = Role.PREFILL, Role.DECODE, 5.0
LATENCY = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
E0, E1, E2, E3 = (InstanceId(f"e{i}") for i in range(4))
policies = pytest.mark.parametrize("policy", ["slack", "paper", "prism"])


class Split:
    """Engines that prefill or decode, of which some never start; the tables are checked after every event."""

    def __init__(
        self, policy: str, *roles: Role, nodes: int = 1, absent: tuple[InstanceId, ...] = (), **settings: float
    ) -> None:
        config = SchedulerConfig(policy=policy_settings(policy), hold_s=HOLD_S, latency=LATENCY, **settings)
        self.sends: list[tuple[float, cmd.Send]] = []
        self.world = small_world(list(roles), nodes=nodes, config=config, observe=self._see)
        for instance in absent:
            self.world.clock.at(0.0, lambda instance=instance: self.world.kill(instance))

    def _see(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        self.sends += [(now, c) for c in commands if isinstance(c, cmd.Send)]
        if hasattr(self, "world"):  # it begins with events
            self.world.scheduler.check()

    def ask(self, name: str, length: int = 400, at: float = 0.1, model: int = 0) -> Client:
        return self.world.request(name, ModelName(f"m{model}"), 50, length, at)

    def at(self, seconds: float, does: str, instance: InstanceId) -> None:
        def do() -> None:
            if does != "start" or instance not in self.world.engines:
                getattr(self.world, does)(instance)

        self.world.clock.at(seconds, do)

    def turns(self, after: float = 0.0) -> list[float]:
        return [at for at, send in self.sends if at > after and isinstance(send.body, cmd.Turn)]


@policies
@pytest.mark.parametrize(
    ("roles", "nodes", "absent"),
    [((P,), 1, ()), ((P, D), 2, ()), ((P, D), 1, (E1,))],
    ids=["none", "elsewhere", "left"],
)
def test_nothing_is_prefilled_that_nothing_could_decode_and_the_wait_has_its_bound(policy, roles, nodes, absent):
    split = Split(policy, *roles, nodes=nodes, absent=absent)
    asked = split.ask("r")
    split.world.run(600)
    assert not split.turns()
    assert asked.rejected.code is RejectCode.UNSERVED
    assert "e0 of node node-0 prefills it, and no engine that can take its KV over decodes it" in asked.rejected.reason
    assert asked.rejected.retry_after_s > 0
    assert asked.rejected_at == pytest.approx(0.1 + HOLD_S, abs=0.1)


@policies
def test_a_stream_whose_only_decoder_has_gone_ends_in_time(policy):
    split = Split(policy, P, D)
    streams = [split.ask(f"r{i}") for i in range(4)]
    split.at(1.0, "kill", E1)
    split.world.run(600)
    assert all(0 < len(one.times) < one.length for one in streams)
    assert {one.rejected.code for one in streams} == {RejectCode.UNSERVED}
    assert all(one.rejected_at <= 1.0 + HOLD_S + 0.1 for one in streams)


@policies
def test_what_waits_for_a_decoder_goes_on_when_one_is_back_in_time(policy):
    split = Split(policy, P, D)
    streams = [split.ask(f"r{i}", at=0.1 + i / 4) for i in range(8)]  # queued, prefilled, handed over and decoding
    split.at(1.0, "kill", E1)
    split.at(1.0 + 0.8 * HOLD_S, "start", E1)
    split.world.run(600)
    assert all(one.finished for one in streams)


@policies
def test_streams_that_wait_for_another_pair_have_their_full_time_when_that_is_lost_too(policy):
    """For room a stream waits without limit, and for what is not there from when that is so."""
    split = Split(policy, P, P, D, D, nodes=2)
    streams = [split.ask(f"r{i}", length=4000, model=i % 4, at=0.1 + i / 40) for i in range(12)]
    split.at(2 * HOLD_S, "kill", E2)
    split.at(2 * HOLD_S + 0.02, "kill", E3)
    split.world.run(600)
    assert all(one.times for one in streams)
    assert {one.rejected.code for one in streams} == {RejectCode.UNSERVED}
    assert [one.rejected_at for one in streams] == pytest.approx([3 * HOLD_S] * 12, abs=0.5)  # turns that run then end


@policies
def test_streams_that_wait_for_any_engine_have_their_full_time_when_one_comes_that_only_prefills(policy):
    split = Split(policy, P, D)
    stream = split.ask("r", length=4000)
    for instance in (E0, E1):
        split.at(1.0, "kill", instance)
    split.at(50.0, "start", E0)
    split.world.run(600)
    assert stream.rejected.code is RejectCode.UNSERVED
    assert stream.rejected_at == pytest.approx(50.0 + HOLD_S, abs=0.1)


@policies
def test_what_was_preempted_on_a_decoder_that_drains_and_is_the_last_ends_in_time(policy):
    split = Split(policy, P, P, D, D)
    streams = [split.ask(f"r{i}", length=60, model=i % 4, at=0.1 + i / 4) for i in range(16)]
    split.at(1.0, "kill", E2)
    split.at(2.0, "drain", E3)
    split.world.run(600, idle=False)
    assert not [stream.seq.request for stream in streams if stream.open]
    assert any(stream.finished for stream in streams), "what its device had went on"
    assert all(stream.rejected_at <= max(stream.arrival, 2.0) + HOLD_S + 0.5 for stream in streams if stream.rejected)


@policies
def test_what_was_preempted_on_a_decoder_that_drains_is_computed_again_on_another_node(policy):
    split = Split(policy, P, P, D, D, nodes=2)
    streams = [split.ask(f"r{i}", length=200, model=i % 4, at=0.1 + i / 4) for i in range(8)]
    split.at(4.0, "drain", E2)
    split.world.run(600, idle=False)
    assert all(stream.finished for stream in streams)


@policies
def test_another_pair_takes_over_at_once(policy):
    split = Split(policy, P, P, D, D, nodes=2)
    streams = [split.ask(f"r{i}", model=i % 4, at=0.1 + i / 8) for i in range(12)]
    split.at(1.0, "kill", E2)
    split.world.run(600)
    assert all(one.finished for one in streams)
    late = {send.instance for at, send in split.sends if at > 1.1 and isinstance(send.body, cmd.Turn)}
    assert late == {E1, E3}


@policies
def test_what_is_cut_off_is_computed_again_once_another_pair_comes(policy):
    split = Split(policy, P, P, D, D, nodes=2, absent=(E1, E3))
    streams = [split.ask(f"r{i}", model=i % 4, at=0.1 + i / 8) for i in range(12)]
    split.at(1.0, "kill", E2)
    split.at(1.5, "start", E3)  # later than the engine that prefills for it, or sooner
    split.at(1.4 if policy == "paper" else 1.6, "start", E1)
    split.world.run(600)
    assert all(one.finished for one in streams)
    assert all(one.times[-1] < 20 for one in streams)


@policies
def test_a_decoder_that_drains_gets_no_further_prompts(policy):
    split = Split(policy, P, D)
    split.at(1.0, "drain", E1)
    asked = split.ask("r", at=1.5)
    split.world.run(600)
    assert not split.turns(after=1.5)
    assert asked.rejected.code is RejectCode.UNSERVED


@policies
def test_a_pool_that_starts_engines_on_demand_waits_for_the_decoder_as_long_as_a_start_may_take(policy):
    split = Split(policy, P, D, absent=(E1,), start_s=60.0)
    in_time, late = split.ask("in time"), split.ask("late", at=50.0)
    split.at(55.0, "start", E1)
    split.world.run(600)
    assert in_time.finished
    assert late.finished


def test_a_model_that_generates_nothing_needs_no_decoder():
    world = small_world([P], pooling=1, config=SchedulerConfig(latency=LATENCY))
    asked = world.request("r", ModelName("m0"), 50, 1, 0.1)
    world.run(60)
    assert asked.finished
    assert world.scheduler.apart("m0") is None
    assert world.scheduler.apart("m1") is not None


def test_why_a_model_is_not_served_follows_its_decoders():
    split = Split("slack", P, D)
    split.world.run(0.05, idle=False)
    core, model = split.world.scheduler, ModelName("m0")
    assert core.apart(model) is None
    for phase in (Phase.FETCHING, Phase.FAILED):
        split.world.feed(ev.ModelReported(E1, model, phase, reason="its files are gone"))
        why = core.apart(model)
        assert why is not None
        assert why.phase is phase
    assert why.reason == "its files are gone"
    assert core.apart("m1") is None
    split.world.feed(ev.InstanceDraining(E1))
    assert core.apart("m1").phase is None
    split.world.feed(ev.InstanceDown(E0))
    assert core.apart("m1") is None  # no engine has it
    assert core.apart("unknown") is None


kinds = st.sampled_from(("kill", "start", "drain"))
changes = st.tuples(st.floats(0.2, 12.0), kinds, st.sampled_from((E0, E1, E2, E3)))


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(("slack", "paper", "prism")), st.integers(1, 2), st.lists(changes, max_size=12))
def test_whatever_comes_and_goes_all_have_an_answer_soon_after(policy, nodes, events):
    split = Split(policy, P, P, D, D, nodes=nodes, restart_s=1.0)
    streams = [split.ask(f"r{i}", length=60, model=i % 4, at=0.1 + i / 4) for i in range(16)]
    for at, does, instance in sorted(events):
        split.at(at, does, instance)
    for instance in (E0, E1):  # they prefill, in the end as well, perhaps with nothing to decode for them
        split.at(12.4, "kill", instance)
        split.at(12.5, "start", instance)
    split.world.run(12.5 + 2 * HOLD_S + 60.0)
    assert not [one.seq.request for one in streams if one.open]
