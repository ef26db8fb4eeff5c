"""Bad input, refusals, waiting and coming back, on the bare core."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import PaperSettings, SchedulerConfig
from aegaeon_scheduler.core.domain import (
    FailureKind,
    Footprint,
    GatewayId,
    Held,
    InstanceId,
    KvShape,
    Memory,
    ModelConfig,
    ModelName,
    Phase,
    Place,
    RejectCode,
    Role,
    SeqId,
    Slo,
)
from aegaeon_scheduler.core.scheduler import Scheduler

E0, E1 = InstanceId("e0"), InstanceId("e1")
GW, M = GatewayId("gw"), ModelName("m")
FOOTPRINT = Footprint(10 << 20, 10, KvShape("s"), 1 << 17, 16, 1024)


def submitted(name: str = "r", epoch: int = 1, prompt: int = 20, prefix: int = 0, model: str = "m") -> ev.Submitted:
    return ev.Submitted(SeqId(name, 0), epoch, GW, ModelName(model), 0.0, prompt, prefix, 100)


def up(
    slabs: int = 40, held: tuple[Held, ...] = (), incarnation: str = "1", instance: InstanceId = E0, node: str = "n"
) -> ev.InstanceUp:
    memory = Memory(slabs, 40)
    return ev.InstanceUp(instance, incarnation, node, Role.UNIFIED, "cpu", 1 << 20, slabs, 40, 8, memory, (), held)


CACHED = ev.ModelReported(E0, M, Phase.CACHED, FOOTPRINT)
FAILED = ev.ModelReported(E0, M, Phase.FAILED, reason="config.json is missing")


class Brain:
    """A scheduler with a catalog of one model, which places what it can within the same event; checks its tables."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.core = Scheduler(replace(config or SchedulerConfig(), policy=PaperSettings()))
        self.on(ev.CatalogChanged((ModelConfig(M, Slo(1.0, 0.1)),)))

    def on(self, event: ev.Event, now: float = 0.0) -> list[cmd.Command]:
        out = self.core.on(now, event)
        self.core.check()
        return out

    def all(self, *events: ev.Event) -> list[cmd.Command]:
        return [c for e in events for c in self.on(e)]


def of(commands: list[cmd.Command], kind: type) -> list:
    bodies = [c.body if isinstance(c, cmd.Send) else c for c in commands]
    return [b for b in bodies if isinstance(b, kind)]


def test_an_unknown_model_is_refused_with_the_served_names():
    out = Brain().on(submitted(model="nope"))
    assert of(out, cmd.Reject)[0].code is RejectCode.UNKNOWN_MODEL
    assert "m" in of(out, cmd.Reject)[0].reason
    assert len(of(out, cmd.SequenceEnded)) == 1


def test_a_request_waits_for_an_instance_and_then_runs():
    brain = Brain()
    assert len(of(brain.on(submitted()), cmd.Accept)) == 1
    out = brain.all(up(), CACHED)
    assert [type(b) for b in (c.body for c in out if isinstance(c, cmd.Send))] == [cmd.Open, cmd.Load, cmd.Turn]


def test_a_request_that_waits_too_long_is_refused_with_retry_after():
    brain = Brain(SchedulerConfig(hold_s=5.0, retry_after_s=3.0))
    wake = of(brain.on(submitted()), cmd.Wake)[0]
    assert wake.at == 5.0
    out = brain.on(ev.Tick(), 5.0)
    assert (of(out, cmd.Reject)[0].code, of(out, cmd.Reject)[0].retry_after_s) == (RejectCode.OVERLOADED, 3.0)
    assert len(of(out, cmd.SequenceEnded)) == 1


def test_a_sequence_with_tokens_delivered_waits_without_limit():
    brain = Brain(SchedulerConfig(hold_s=5.0))
    brain.all(submitted("streamed", epoch=2, prefix=7), submitted("new"))
    brain.on(ev.Tick(), 1.0)
    rejected = of([*brain.on(ev.Tick(), 5.0), *brain.on(ev.Tick(), 500.0)], cmd.Reject)
    assert [reject.seq.request for reject in rejected] == ["new"]
    brain.core.on(500.0, up())
    assert of(brain.on(CACHED, 500.0), cmd.Open)[0].seq.request == "streamed"


def test_no_request_is_refused_while_a_lost_engine_may_reattach():
    brain = Brain(SchedulerConfig(hold_s=5.0, restart_s=12.0))
    brain.all(up(), CACHED, ev.InstanceDown(E0), submitted())
    assert not of([*brain.on(ev.Tick(), 5.0), *brain.on(ev.Tick(), 10.0)], cmd.Reject)
    assert of(brain.on(ev.Tick(), 15.0), cmd.Reject)[0].code is RejectCode.OVERLOADED


def test_an_engine_that_the_pool_is_to_have_no_more_is_not_waited_for():
    brain = Brain(SchedulerConfig(hold_s=5.0, restart_s=60.0))
    brain.all(up(), up(instance=E1), CACHED, ev.EnginesExpected((E0,)), ev.InstanceDown(E1))
    brain.all(ev.InstanceDraining(E0), ev.InstanceDown(E0), submitted())  # a rolling restart of what is left
    assert not of([*brain.on(ev.Tick(), 5.0), *brain.on(ev.Tick(), 10.0)], cmd.Reject)
    brain.on(ev.EnginesExpected(()), 12.0)
    brain.on(submitted("later"), 12.0)
    assert [reject.seq.request for reject in of(brain.on(ev.Tick(), 15.0), cmd.Reject)] == ["r"]
    assert [reject.seq.request for reject in of(brain.on(ev.Tick(), 17.0), cmd.Reject)] == ["later"]


def test_any_engine_is_waited_for_where_those_of_the_pool_are_not_known_any_more():
    brain = Brain(SchedulerConfig(hold_s=5.0, restart_s=60.0))
    brain.all(up(), CACHED, ev.EnginesExpected(()), ev.EnginesExpected(None), ev.InstanceDown(E0), submitted())
    assert not of([*brain.on(ev.Tick(), 5.0), *brain.on(ev.Tick(), 10.0)], cmd.Reject)


def test_a_change_of_the_hold_for_starts_counts_for_what_waits_and_for_what_comes():
    brain = Brain(SchedulerConfig(hold_s=5.0))
    brain.on(submitted("before"))
    brain.on(ev.StartHoldChanged(60.0))
    brain.on(submitted("after"))
    assert not of([*brain.on(ev.Tick(), 5.0), *brain.on(ev.Tick(), 59.0)], cmd.Reject)
    assert len(of([*brain.on(ev.Tick(), 60.0), *brain.on(ev.Tick(), 66.0)], cmd.Reject)) == 2


@pytest.mark.parametrize("seed", range(20))
def test_no_request_without_tokens_is_open_beyond_its_bound(seed: int):
    """hold_s, or until an engine that was lost is given up, and hold_s from there: whatever engines do meanwhile."""
    chance, config = random.Random(seed), SchedulerConfig(hold_s=5.0, restart_s=20.0)
    brain, waiting, lost_at, number = Brain(config), {}, -math.inf, 0
    for now in (step * 0.5 for step in range(240)):
        out = brain.on(ev.Tick(), now)
        happens, there = chance.random(), E0 in brain.core._pool.instances
        if happens < 0.05 and not there:
            out += brain.on(up(incarnation=str(now)), now)  # it never gets as far as its models
        elif happens < 0.05 and now < 60.0:
            out += brain.on(ev.InstanceDown(E0), now)
            lost_at = now
        elif happens < 0.3:
            number += 1
            waiting[f"r{number}"] = now
            out += brain.on(replace(submitted(f"r{number}"), arrival=now), now)
        for reject in of(out, cmd.Reject):
            del waiting[reject.seq.request]
        for arrival in waiting.values():
            assert now <= max(arrival, lost_at + config.restart_s) + config.hold_s + 1.0
    assert number > 20


def test_requests_that_waited_for_a_reattached_engine_keep_their_bound():
    brain = Brain(SchedulerConfig(hold_s=5.0, restart_s=60.0))
    brain.all(up(), CACHED, ev.InstanceDown(E0), submitted())
    brain.on(ev.Tick(), 5.0)
    brain.on(up(incarnation="2"), 6.0)  # it has not got the model yet
    assert of(brain.on(ev.Tick(), 10.0), cmd.Reject)[0].code is RejectCode.OVERLOADED


def test_a_full_queue_refuses_at_once():
    brain = Brain(SchedulerConfig(max_queue=1))
    brain.on(submitted("a"))
    assert of(brain.on(submitted("b")), cmd.Reject)[0].code is RejectCode.OVERLOADED


def test_a_model_that_failed_everywhere_answers_with_its_reason():
    brain = Brain()
    brain.all(up(), submitted())
    out = brain.on(FAILED)
    assert of(out, cmd.Reject)[0].code is RejectCode.MODEL_FAILED
    assert "config.json is missing" in of(out, cmd.Reject)[0].reason
    assert of(brain.on(submitted("later")), cmd.Reject)[0].code is RejectCode.MODEL_FAILED


def test_a_prompt_that_fits_no_engine_or_no_model_is_too_long():
    brain = Brain()
    brain.all(up(slabs=14), CACHED)
    assert of(brain.on(submitted(prompt=600)), cmd.Reject)[0].code is RejectCode.TOO_LONG
    assert of(brain.on(submitted(prompt=5000)), cmd.Reject)[0].code is RejectCode.TOO_LONG


def test_a_withdrawn_model_ends_its_requests():
    brain = Brain()
    brain.all(up(), CACHED, submitted())
    out = brain.on(ev.CatalogChanged(()))
    assert of(out, cmd.Reject)[0].code is RejectCode.UNKNOWN_MODEL
    assert len(of(out, cmd.SequenceEnded)) == 1


def test_sequences_of_a_lost_gateway_are_cancelled():
    brain = Brain()
    brain.all(up(), CACHED, submitted("a"), submitted("b"))
    out = brain.on(ev.GatewayDown(GW))
    assert len(of(out, cmd.SequenceEnded)) == 2
    assert [c.seq.request for c in of(out, cmd.Close)] == ["a", "b"]


def test_sequences_on_a_lost_instance_are_lost_and_queued_ones_wait():
    brain = Brain()
    brain.all(up(), CACHED, *(submitted(n) for n in "abcd"))
    out = brain.on(ev.InstanceDown(E0))
    assert [lost.seq.request for lost in of(out, cmd.SequenceLost)] == ["a", "b"]
    out = brain.all(up(incarnation="2"), CACHED)
    assert [o.seq.request for o in of(out, cmd.Open)] == ["c", "d"]


def test_a_lost_sequence_is_prefilled_again_from_prompt_and_prefix():
    brain = Brain()
    brain.all(up(), CACHED, submitted())
    brain.on(ev.InstanceDown(E0))
    brain.all(up(incarnation="2"), CACHED)
    out = brain.on(submitted(epoch=2, prefix=7), now=5.0)
    turn = of(out, cmd.Turn)[0]
    assert sum(p.tokens for p in turn.prefill) == 27
    assert of(out, cmd.Open)[0].epoch == 2


HELD = Held(SeqId("r", 0), 1, M, 20, 9, 28, Place.DEVICE)


def test_sequences_that_an_instance_still_holds_resume_under_the_new_epoch():
    brain = Brain()
    brain.all(up(held=(HELD,)), CACHED)
    out = brain.on(submitted(epoch=2, prefix=7))
    assert of(out, cmd.Open)[0].epoch == 2
    turn = of(out, cmd.Turn)[0]
    assert (turn.prefill, turn.decode) == ((), (SeqId("r", 0),))


def test_kv_behind_the_readers_prefix_is_not_reused():
    brain = Brain()
    brain.all(up(held=(HELD,)), CACHED)
    out = brain.on(submitted(epoch=2, prefix=12), now=5.0)
    assert [type(b) for b in (c.body for c in out if isinstance(c, cmd.Send))][:2] == [cmd.Close, cmd.Open]
    assert of(out, cmd.Turn)[0].prefill


def test_a_request_submitted_before_its_holder_attaches_is_claimed_when_it_does():
    brain = Brain()
    brain.on(submitted(epoch=2, prefix=7))
    out = brain.all(up(held=(HELD,)), CACHED)
    assert of(out, cmd.Turn)[0].decode == (SeqId("r", 0),)


def test_resubmitted_sequences_wait_after_a_restart_for_an_engine_that_may_hold_them():
    brain = Brain(SchedulerConfig(reattach_grace_s=1.0))
    brain.all(up(), CACHED)
    out = brain.on(submitted(epoch=2, prefix=7))
    assert not of(out, cmd.Open)
    assert of(out, cmd.Wake) == [cmd.Wake(1.0)]
    out = brain.all(up(instance=E1, held=(HELD,)), replace(CACHED, instance=E1))
    assert of(out, cmd.Turn)[0].decode == (SeqId("r", 0),)


def test_sequences_that_no_engine_holds_are_prefilled_after_the_start():
    brain = Brain(SchedulerConfig(reattach_grace_s=1.0))
    brain.all(up(), CACHED, submitted(epoch=2, prefix=7))
    out = brain.on(ev.Tick(), now=1.0)
    assert sum(p.tokens for p in of(out, cmd.Turn)[0].prefill) == 27


def test_a_late_holder_closes_a_sequence_that_runs_elsewhere():
    brain = Brain(SchedulerConfig(reattach_grace_s=0.0))
    brain.all(up(), CACHED, submitted(epoch=2, prefix=7))
    out = brain.on(up(instance=E1, held=(HELD,)))
    assert of(out, cmd.Close) == [cmd.Close(SeqId("r", 0), 1)]


def test_unclaimed_sequences_are_closed_when_their_lease_expires():
    brain = Brain(SchedulerConfig(held_lease_s=4.0))
    wake = of(brain.all(up(held=(HELD,)), CACHED), cmd.Wake)[0]
    out = brain.on(ev.Tick(), wake.at)
    assert of(out, cmd.Close) == [cmd.Close(SeqId("r", 0), 1)]


def test_older_epochs_are_ignored():
    brain = Brain()
    brain.all(up(), CACHED, submitted(epoch=3))
    assert brain.on(submitted(epoch=2)) == []


def test_cancelling_twice_or_an_unknown_sequence_does_nothing():
    brain = Brain()
    brain.all(up(), CACHED, submitted())
    first = brain.on(ev.Cancelled(SeqId("r", 0)))
    assert len(of(first, cmd.Close)) == len(of(first, cmd.SequenceEnded)) == 1
    assert brain.on(ev.Cancelled(SeqId("r", 0))) == []
    assert brain.on(ev.Cancelled(SeqId("never", 0))) == []


def test_seconds_of_the_compute_lane_are_busy_switching_or_stalled_by_engine_and_by_model():
    brain = Brain()
    out = brain.all(up(), CACHED, submitted())
    turn = next(c.id for c in out if isinstance(c, cmd.Send) and isinstance(c.body, cmd.Turn))
    for wait_s, decode_s, prefill_s in ((0.5, 0.0, 0.25), (0.125, 0.75, 0.0)):
        brain.on(ev.TurnProgress(E0, turn, (), 1, decode_s, 0, prefill_s, wait_s, 1, 20, Memory(30, 40), end=False))
    seen = brain.core.snapshot(1.0)
    for one in (*seen.instances, *seen.models):
        assert (one.busy_s, one.switch_s, one.stall_s) == (1.0, 0.5, 0.125)


def test_a_snapshot_tells_since_when_a_turn_lasts_and_when_a_model_was_last_worked_for():
    brain = Brain()
    out = brain.all(up(), CACHED)
    (idle,) = brain.core.snapshot(5.0).instances
    assert (idle.turn_s, idle.first_steps) == (0.0, False)
    out = brain.on(submitted(), 10.0)
    turn = next(c.id for c in out if isinstance(c, cmd.Send) and isinstance(c.body, cmd.Turn))
    seen = brain.core.snapshot(19.0)
    assert (seen.instances[0].turn_s, seen.instances[0].first_steps) == (9.0, True)
    assert (seen.models[0].worked_at, seen.models[0].answered_at) == (-math.inf, -math.inf)

    def step(at: float, tokens: int) -> None:
        progress = ev.Progress(SeqId("r", 0), 1, tokens, 20 + tokens)
        brain.on(ev.TurnProgress(E0, turn, (progress,), 1, 0.5, 0, 0.0, 0.0, 1, 20, Memory(30, 40), end=False), at)

    step(20.0, 0)
    step(25.0, 1)
    step(27.0, 1)
    seen = brain.core.snapshot(30.0)
    assert (seen.instances[0].turn_s, seen.instances[0].first_steps) == (3.0, False)
    assert (seen.models[0].worked_at, seen.models[0].answered_at) == (27.0, 25.0)


def test_a_turn_lasts_from_the_end_of_the_load_that_it_has_waited_for():
    brain = Brain()
    out = [*brain.all(up(), CACHED), *brain.on(submitted(), 10.0)]
    sent = {type(c.body): c.id for c in out if isinstance(c, cmd.Send)}
    brain.on(ev.CommandDone(E0, sent[cmd.Load], 1.0, Memory(30, 40), 1), 22.0)
    assert brain.core.snapshot(23.0).instances[0].turn_s == 1.0
    brain.on(ev.TurnProgress(E0, sent[cmd.Turn], (), 0, 0.0, 0, 0.0, 0.0, 0, 0, Memory(30, 40), end=False), 25.0)
    seen = brain.core.snapshot(26.0)
    assert (seen.instances[0].turn_s, seen.models[0].worked_at) == (1.0, -math.inf), "a report without work"


def test_a_turn_behind_one_that_failed_begins_with_its_failure():
    brain = Brain()
    out = [*brain.all(up(), CACHED), *brain.on(submitted(), 10.0)]
    first = next(c.id for c in out if isinstance(c, cmd.Send) and isinstance(c.body, cmd.Turn))
    step = ev.Progress(SeqId("r", 0), 1, 1, 21)
    out = brain.on(ev.TurnProgress(E0, first, (step,), 1, 0.5, 20, 0.5, 0.0, 1, 20, Memory(30, 40), end=True), 20.0)
    failed, _ = (c.id for c in out if isinstance(c, cmd.Send) and isinstance(c.body, cmd.Turn))
    brain.on(ev.CommandFailed(E0, failed, FailureKind.NO_MEMORY, "full", Memory(30, 40)), 30.0)
    assert brain.core.snapshot(31.0).instances[0].turn_s == 1.0


def test_places_are_by_arrival_among_those_that_wait_for_the_same():
    brain = Brain()
    waiting = [replace(submitted(name), arrival=arrival) for name, arrival in (("b", 2.0), ("a", 1.0), ("c", 3.0))]
    brain.all(*waiting)  # there is no engine
    assert {seq.request: place for seq, place in brain.core.places(before=2.5).items()} == {"a": 1, "b": 2}
    brain.on(ev.Cancelled(SeqId("a", 0)))
    assert {seq.request: place for seq, place in brain.core.places(before=9.0).items()} == {"b": 1, "c": 2}
    brain.all(up(), CACHED)  # which takes them both
    assert brain.core.places(before=9.0) == {}
