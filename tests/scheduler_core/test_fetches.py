"""Models that are on no node: one node fetches what requests wait for, which are held while it does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_core.test_failed_models import cached, failed, loads, policies, rejects
from scheduler_core.test_scheduler import E0, E1, M, of, submitted, up

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import SchedulerConfig, policy_settings
from aegaeon_scheduler.core.domain import InstanceId, ModelConfig, Phase, RejectCode, Slo
from aegaeon_scheduler.core.scheduler import Scheduler

E2 = InstanceId("e2")
NODES = {E0: "n", E1: "n", E2: "other"}


class Brain:
    """A core with engines on two nodes, none of which has the model. It passes over its pool whenever it wants to."""

    def __init__(self, policy: str, *instances: InstanceId, admission: str = "none") -> None:
        self.core = Scheduler(SchedulerConfig(policy=policy_settings(policy), admission=admission, hold_s=30.0))
        self.now = 0.0
        self.on(ev.CatalogChanged((ModelConfig(M, Slo(1.0, 0.1)),)))
        for instance in instances:
            self.on(replace(up(instance=instance), node=NODES[instance]), absent(instance))
        self.now = 100.0  # engines that held sequences at its start have reported them by now

    def on(self, *events: ev.Event) -> list[cmd.Command]:
        out = []
        for event in (*events, ev.Tick()):
            self.now += 0.05
            out += self.core.on(self.now, event)
            self.core.check()
        return out

    def later(self, seconds: float) -> list[cmd.Command]:
        self.now += seconds
        return self.on()


def absent(instance: InstanceId = E0) -> ev.ModelReported:
    return ev.ModelReported(instance, M, Phase.ABSENT, reason="no room")


def fetching(instance: InstanceId = E0, remaining_s: float = 0.0) -> ev.ModelReported:
    return ev.ModelReported(instance, M, Phase.FETCHING, remaining_s=remaining_s)


def sent_to(commands: list[cmd.Command]) -> list[InstanceId]:
    return [c.instance for c in commands if isinstance(c, cmd.Send) and isinstance(c.body, cmd.Fetch)]


@policies
def test_all_engines_of_one_node_fetch_what_the_first_request_waits_for(policy):
    brain = Brain(policy, E0, E1, E2)
    assert sent_to(brain.on(submitted("a"))) == [E0, E1]
    assert sent_to(brain.on(submitted("b"), fetching(E0), fetching(E1))) == []
    out = brain.on(cached(E1))
    assert [where for where, _ in loads(out)] == [E1]
    assert sent_to(out) == []


@pytest.mark.parametrize("admission", ["none", "feasible"])
def test_a_request_is_held_while_its_model_comes_and_refused_with_a_pause_once_nothing_is_expected(admission):
    brain = Brain("slack", E0, admission=admission)
    brain.on(submitted("a"))
    brain.on(fetching(E0, remaining_s=100.0))
    assert not rejects(brain.later(60.0) + brain.later(60.0))
    brain.on(fetching(E0, remaining_s=40.0))
    assert not rejects(brain.later(85.0))
    out = brain.later(10.0)
    assert [code for _, code, _ in rejects(out)] == [RejectCode.OVERLOADED]
    assert all(reject.retry_after_s > 0 for reject in of(out, cmd.Reject))


@policies
def test_a_fetch_that_found_no_room_is_tried_again_while_requests_wait_and_not_without(policy):
    brain = Brain(policy, E0)
    brain.on(submitted("a"), fetching())
    assert sent_to(brain.on(absent())) == [E0]
    brain.on(ev.Cancelled(submitted("a").seq), fetching())
    assert sent_to(brain.on(absent())) == []


@policies
def test_what_was_to_run_where_the_model_was_evicted_waits_until_it_is_back(policy):
    brain = Brain(policy, E0)
    brain.on(cached())
    ((_, load),) = loads(brain.on(submitted("a")))
    out = brain.on(absent())
    assert sent_to(out if not of(out, cmd.SequenceLost) else brain.on(submitted("a", epoch=2))) == [E0]
    brain.on(ev.CommandSkipped(E0, load, load))
    out = brain.on(cached())
    assert [where for where, _ in loads(out)] == [E0]
    assert not rejects(out)


@policies
def test_another_node_fetches_it_when_that_which_did_is_gone_or_failed(policy):
    brain = Brain(policy, E0, E2)
    assert sent_to(brain.on(submitted("a"))) == [E0]
    assert sent_to(brain.on(ev.InstanceDown(E0))) == [E2]
    brain = Brain(policy, E0, E2)
    brain.on(submitted("a"), fetching())
    out = brain.on(failed())
    assert sent_to(out + brain.on(submitted("b"))) == [E2]
    assert not rejects(out)
