"""Requests that are deferred run on what others leave; a priority counts among those of its tenant alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduler_core.test_slack import Watched

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import GatewayId, ModelConfig, ModelName, Role, SeqId, Slo
from aegaeon_scheduler.core.events import Submitted
from aegaeon_scheduler.core.policies.slack.order import Member, begun, by_rank, member
from aegaeon_scheduler.core.slo import attainment
from aegaeon_scheduler.core.state import Model, Sequence
from aegaeon_simulator.pool.client import Client

NIGHT_S = 60.0


def night(w: Watched, count: int, model: int, *, length: int = 60, at: float = 0.1) -> list[Client]:
    """So many requests of a batch, at once."""
    made = [w.ask(f"night{model}-{i}", model, 50, length, at=at) for i in range(count)]
    for client in made:
        client.defer_s = NIGHT_S
    return made


def day(w: Watched, model: int, per_second: float, seconds: int, at: float = 1.0) -> list[Client]:
    """Online requests."""
    every = range(int(seconds * per_second))
    return [w.ask(f"day{model}-{i}", model, 50, 40, at=at + i / per_second) for i in every]


def on_time(w: Watched, clients: list[Client]) -> float:
    return attainment((c.times, w.world.models[c.model][1], c.length) for c in clients).token


def order(w: Watched) -> list[str]:
    """Requests, as their prompts began."""
    return [p.seq.request for body in w.bodies(cmd.Turn) for p in body.prefill]


def test_an_online_prompt_comes_before_those_of_batches_of_its_model():
    w = Watched([Role.UNIFIED], slabs=450)
    night(w, 12, 0)
    hello = w.ask("hello", 0, 50, 5, at=0.12)
    w.world.run(60)
    assert w.all_finished()
    assert order(w).index("hello") <= 3  # the load's and the turns that were on the lane
    assert hello.times[0] < w.world.models[ModelName("m0")][1].ttft_s


def test_a_model_asked_by_batches_alone_gives_its_place_to_one_that_is_asked_online():
    w = Watched([Role.UNIFIED], slabs=150)  # room for one model
    batch = night(w, 4, 0, length=600)
    online = w.ask("hello", 1, 50, 20, at=3.0)
    w.world.run(120)
    assert w.all_finished()
    assert on_time(w, [online]) == 1.0
    assert any(client.times[-1] > online.arrival for client in batch)


def test_batches_use_what_online_traffic_leaves_and_it_stays_on_time():
    w = Watched([Role.UNIFIED], slabs=450)
    online = day(w, 0, 2.0, 20)
    batch = night(w, 8, 0) + night(w, 8, 1)
    w.world.run(120)
    assert w.all_finished()
    assert on_time(w, online) == 1.0
    assert all(client.arrival + client.times[-1] < 20.0 for client in batch), "streams that are ahead lend their time"


def test_a_priority_moves_a_prompt_before_its_tenants_others():
    w = Watched([Role.UNIFIED], slabs=450)
    for name, tenant, priority in (("a1", "a", 0), ("b1", "b", 9), ("a2", "a", 5), ("b2", "b", 0), ("a3", "a", -1)):
        client = w.ask(name, 0, 50, 5)
        client.tenant, client.priority = tenant, priority
    w.world.run(30)
    assert w.all_finished()
    assert order(w) == ["a3", "b2", "a1", "b1", "a2"]


ARRIVED = st.tuples(st.sampled_from("abc"), st.integers(-3, 3), st.sampled_from([0.0, 60.0]))


def sequence(number: int, tenant: str, priority: int, defer_s: float) -> Sequence:
    model = Model(ModelConfig(ModelName("m"), Slo(2.0, 0.1)), 0)
    seq = SeqId(str(number), 0)
    event = Submitted(seq, 1, GatewayId("g"), model.name, number, 9, 0, 9, defer_s, tenant, priority)
    row = Sequence(event, model, number)
    row.row = Member(row)
    return row


@given(st.lists(st.none() | ARRIVED, max_size=24))
def test_whatever_priorities_a_tenant_gives_all_others_begin_when_they_would_without(
    happens: list[tuple[str, int, float] | None],
):
    """None: a prompt begins."""
    waiting: list[Sequence] = []
    plain: list[Sequence] = []
    for number, arrived in enumerate(happens):
        if arrived is not None:
            waiting.append(sequence(number, *arrived))
            plain.append(sequence(number, arrived[0], 0, arrived[2]))
        elif waiting:
            first, expected = next(by_rank(waiting)), next(by_rank(plain))
            assert (first.tenant, first.deferred) == (expected.tenant, expected.deferred)
            own = [seq for seq in waiting if (seq.tenant, seq.deferred) == (first.tenant, first.deferred)]
            assert first.priority == min(seq.priority for seq in own)
            begun(first, waiting)
            waiting.remove(first)
            plain.remove(expected)
    assert not [seq for seq in plain if member(seq).queue_place != seq.order], "without priorities nothing moves"
