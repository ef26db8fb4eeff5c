"""A model, or an adapter of one, that fails on an instance: another takes its sequences; where there is none they end
with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_core.test_scheduler import E0, E1, FOOTPRINT, M, of, submitted, up

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import SchedulerConfig, policy_settings
from aegaeon_scheduler.core.domain import FailureKind, InstanceId, Memory, ModelConfig, Phase, RejectCode, Role, Slo
from aegaeon_scheduler.core.scheduler import Scheduler

REASON = "m: weights changed while served: model.safetensors: missing"


class Brain:
    """A core that passes over its pool whenever it wants to; checks its tables."""

    def __init__(self, policy: str, *instances: InstanceId) -> None:
        self.core = Scheduler(SchedulerConfig(policy=policy_settings(policy)))
        self.now = 0.0
        self.on(ev.CatalogChanged((ModelConfig(M, Slo(1.0, 0.1)),)))
        for instance in instances:
            self.on(up(instance=instance))
            self.on(cached(instance))
        self.now = 100.0  # engines that held sequences at its start have reported them by now

    def on(self, event: ev.Event) -> list[cmd.Command]:
        out = []
        for one in (event, ev.Tick()):
            self.now += 0.05
            out += self.core.on(self.now, one)
            self.core.check()
        return out


def cached(instance: InstanceId = E0) -> ev.ModelReported:
    return ev.ModelReported(instance, M, Phase.CACHED, FOOTPRINT)


def failed(instance: InstanceId = E0, reason: str = REASON) -> ev.ModelReported:
    return ev.ModelReported(instance, M, Phase.FAILED, reason=reason)


def loads(commands: list[cmd.Command]) -> list[tuple[InstanceId, int]]:
    return [(c.instance, c.id) for c in commands if isinstance(c, cmd.Send) and isinstance(c.body, cmd.Load)]


def rejects(commands: list[cmd.Command]) -> list[tuple[str, RejectCode, str]]:
    return [(reject.seq.request, reject.code, reject.reason) for reject in of(commands, cmd.Reject)]


policies = pytest.mark.parametrize("policy", ["paper", "slack"])


@policies
def test_requests_for_a_model_that_fails_on_every_engine_end_with_its_reason(policy):
    brain = Brain(policy, E0)
    ((where, load),) = loads(brain.on(submitted("a")) + brain.on(submitted("b")))
    out = brain.on(failed(where))
    assert rejects(out) == [(name, RejectCode.MODEL_FAILED, REASON) for name in "ab"]
    assert not of(out, cmd.SequenceLost)
    brain.on(ev.CommandFailed(where, load, FailureKind.ENGINE, REASON))
    for name in ("c", "d"):
        assert rejects(brain.on(submitted(name))) == [(name, RejectCode.MODEL_FAILED, REASON)]


@policies
def test_a_model_that_fails_on_one_instance_runs_on_the_other_one(policy):
    brain = Brain(policy, E0, E1)
    ((first, load),) = loads(brain.on(submitted("a")))
    out = brain.on(failed(first)) + brain.on(ev.CommandFailed(first, load, FailureKind.ENGINE, REASON))
    assert not rejects(out)
    if of(out, cmd.SequenceLost):
        out += brain.on(submitted("a", epoch=2))
    (second,) = {instance for instance, _ in loads(out)}
    assert second != first
    assert {instance for instance, _ in loads(brain.on(submitted("b")))} <= {second}
    out = brain.on(failed(second, "m: cannot be read"))
    assert {name for name, code, _ in rejects(out) if code is RejectCode.MODEL_FAILED} == {"a", "b"}


@policies
def test_a_repaired_model_runs_again(policy):
    brain = Brain(policy, E0)
    brain.on(failed())
    assert rejects(brain.on(submitted("a")))
    brain.on(cached())
    out = brain.on(submitted("b"))
    assert [instance for instance, _ in loads(out)] == [E0]


def without(instance: InstanceId, **adapters: str) -> ev.ModelReported:
    """These adapters failed there, and no others."""
    return replace(cached(instance), without=tuple(adapters.items()))


def asked(name: str, adapter: str) -> ev.Submitted:
    return replace(submitted(name), adapter=adapter)


def opened(commands: list[cmd.Command]) -> dict[str, InstanceId]:
    sends = (c for c in commands if isinstance(c, cmd.Send) and isinstance(c.body, cmd.Open))
    return {c.body.seq.request: c.instance for c in sends}


@policies
def test_an_adapter_that_failed_on_one_instance_is_served_by_the_other_one(policy):
    brain = Brain(policy, E0, E1)
    brain.on(without(E0, poet="poet: no room for it"))
    brain.on(without(E1, judge="judge: truncated"))
    out = brain.on(asked("a", "poet")) + brain.on(asked("b", "judge"))
    assert not rejects(out)
    assert opened(out) == {"a": E1, "b": E0}


@policies
def test_an_adapter_that_fails_where_its_sequences_are_sends_them_to_the_other_instance(policy):
    brain = Brain(policy, E0, E1)
    (first,) = opened(brain.on(asked("a", "poet"))).values()
    second = E1 if first == E0 else E0
    out = brain.on(without(first, poet="poet: gone"))
    assert [lost.blameless for lost in of(out, cmd.SequenceLost)] == [True]
    out = brain.on(replace(asked("a", "poet"), epoch=2)) + brain.on(asked("b", "poet"))
    assert opened(out)["a"] == second
    assert set(opened(out).values()) == {second}


@policies
def test_an_adapter_that_failed_everywhere_ends_its_requests_with_the_reason_and_no_others(policy):
    brain = Brain(policy, E0)
    brain.on(asked("a", "poet"))
    brain.on(submitted("b"))
    out = brain.on(without(E0, poet="poet: truncated")) + brain.on(asked("c", "poet"))
    assert rejects(out) == [(name, RejectCode.MODEL_FAILED, "poet: truncated") for name in "ac"]
    brain.on(without(E0))
    assert not rejects(brain.on(asked("d", "poet")))


def test_sequences_that_waited_together_part_when_no_instance_serves_the_adapters_of_both():
    brain = Brain("slack", E0, E1)
    for other in (E0, E1):  # they are full: who comes waits
        brain.on(ev.MemoryReported(other, Memory(0, 0)))
    brain.on(asked("a", "poet"))
    brain.on(asked("b", "judge"))
    out = brain.on(without(E0, poet="poet: truncated")) + brain.on(without(E1, judge="judge: truncated"))
    for other in (E0, E1):
        out += brain.on(ev.MemoryReported(other, Memory(40, 40)))
    assert not rejects(out)
    assert opened(out) == {"a": E1, "b": E0}


NODES = {"p0": "n0", "d0": "n0", "d1": "n0", "p1": "n1", "d2": "n1"}


def disaggregated(policy: str, *names: str) -> Brain:
    """Instances that prefill (p) and decode (d), on two nodes; each has the model."""
    brain = Brain(policy)
    for name in names:
        role = Role.PREFILL if name.startswith("p") else Role.DECODE
        brain.on(replace(up(instance=InstanceId(name)), node=NODES[name], role=role))
        brain.on(cached(InstanceId(name)))
    return brain


@policies
def test_a_model_that_failed_wherever_it_would_be_decoded_is_prefilled_on_the_other_node(policy):
    brain = disaggregated(policy, *NODES)
    brain.on(failed(InstanceId("d0")))
    brain.on(failed(InstanceId("d1")))
    out = [command for name in "abcd" for command in brain.on(submitted(name))]
    assert not rejects(out)
    assert set(opened(out).values()) == {"p1"}
    out = brain.on(failed(InstanceId("d2")))
    assert {name for name, code, _ in rejects(out) if code is RejectCode.MODEL_FAILED} == set("abcd")


@policies
def test_a_model_that_is_mended_where_it_decodes_is_prefilled_again(policy):
    brain = disaggregated(policy, "p0", "d0")
    brain.on(failed(InstanceId("d0")))
    assert [code for _, code, _ in rejects(brain.on(submitted("a")))] == [RejectCode.MODEL_FAILED]
    brain.on(ev.ModelReported(InstanceId("d0"), M, Phase.FETCHING))
    assert not opened(brain.on(submitted("b")))
    assert opened(brain.on(cached(InstanceId("d0")))) == {"b": "p0"}


reports = st.tuples(st.sampled_from(sorted(NODES)), st.sampled_from((Phase.CACHED, Phase.FETCHING, Phase.FAILED)))


@settings(max_examples=60)
@given(st.sampled_from(["paper", "slack"]), st.lists(reports | st.just(None), max_size=24))
def test_nothing_is_prefilled_where_nothing_beside_it_has_the_model_to_decode_it(policy, events):
    """None: a request comes."""
    brain = disaggregated(policy, *NODES)
    phases = dict.fromkeys(NODES, Phase.CACHED)
    for number, event in enumerate(events):
        if event is not None:
            name, phases[name] = event
            known = {Phase.CACHED: cached, Phase.FAILED: failed}
            some = known.get(phases[name], lambda to: ev.ModelReported(to, M, Phase.FETCHING))
            out = brain.on(some(InstanceId(name)))
        else:
            out = brain.on(submitted(f"r{number}"))
        for place in opened(out).values():
            beside = [phases[other] for other in NODES if other[0] == "d" and NODES[other] == NODES[place]]
            assert place[0] != "p" or Phase.CACHED in beside
