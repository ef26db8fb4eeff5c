"""Tenants of one model: who takes it from others comes late itself, and where none does, nothing changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_world import interpreted, small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import ALIKE, GatewayId, ModelConfig, ModelName, Role, SeqId, Slo, Terms, Tier
from aegaeon_scheduler.core.policies.slack import SlackPolicy
from aegaeon_scheduler.core.policies.slack.batch import due_last, in_places
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import Member, member
from aegaeon_scheduler.core.policies.slack.price import Costs
from aegaeon_scheduler.core.policies.slack.tenants import Clock, Visit
from aegaeon_scheduler.core.slo import attainment
from aegaeon_scheduler.core.state import Model, Sequence
from aegaeon_simulator.pool.client import Client
from aegaeon_simulator.pool.world import World

M0, M1 = ModelName("m0"), ModelName("m1")
SLO = Slo(2.0, 0.1)
LATENCY = LatencyConstants(c=2e-3, load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
Observe = Callable[[float, ev.Event, list[cmd.Command]], None]


def pool(observe: Observe = lambda now, event, commands: None) -> World:
    """One engine with room for all four models; it carries about 23 requests of 40 tokens a second."""
    config = SchedulerConfig(hold_s=1e9, latency=LATENCY, refine=False)
    return small_world([Role.UNIFIED], slabs=1500, host_slabs=2000, config=config, observe=observe)


def submit(
    world: World, tenant: str, rate: float, begin: float, end: float, model: ModelName = M0, terms: Terms = ALIKE
) -> None:
    """So many requests a second from then until then."""
    for i in range(int((end - begin) * rate)):
        client = world.request(f"{tenant}-{model}-{i}", model, 50, 40, at=begin + i / rate)
        client.tenant, client.terms = tenant, terms


def of(world: World, tenant: str) -> list[Client]:
    return [client for client in world.clients.values() if client.tenant == tenant]


def on_time(clients: list[Client]) -> float:
    return attainment((c.times, SLO, c.length) for c in clients).token


def tokens(clients: list[Client], begin: float, end: float) -> int:
    return sum(begin <= c.arrival + at < end for c in clients for at in c.times)


def flooded(apart: bool = True) -> list[Client]:
    """Requests of a tenant that needs a tenth of what the model carries, beside one that needs twice of it."""
    world = pool()
    submit(world, "small", 2.0, 0.1, 14.0)
    submit(world, "big", 50.0, 4.0, 9.0)
    small = of(world, "small")
    for client in world.clients.values():
        client.tenant = client.tenant if apart else ""
    world.run(300)
    assert all(client.finished for client in world.clients.values())
    return small


def test_a_tenant_that_needs_little_is_on_time_beside_one_that_floods_its_model() -> None:
    assert on_time(flooded()) >= 0.97
    assert on_time(flooded(apart=False)) < 0.9


@pytest.mark.parametrize("rates", [(30.0, 30.0), (20.0, 60.0)])
def test_two_tenants_that_flood_a_model_are_served_alike(rates: tuple[float, float]) -> None:
    world = pool()
    submit(world, "one", rates[0], 0.1, 25.0)
    submit(world, "two", rates[1], 0.1, 25.0)
    world.run(25.0)
    first, second = (tokens(of(world, tenant), 4.0, 25.0) for tenant in ("one", "two"))
    assert first / second == pytest.approx(1.0, rel=0.1)


def test_tokens_of_tenants_that_flood_a_model_follow_their_weights() -> None:
    world = pool()
    submit(world, "heavy", 40.0, 0.1, 20.0, terms=Terms(weight=3))
    submit(world, "light", 40.0, 0.1, 20.0)
    world.run(20.0)
    heavy, light = (tokens(of(world, tenant), 5.0, 20.0) for tenant in ("heavy", "light"))
    assert heavy / light == pytest.approx(3.0, rel=0.2)


def test_an_interactive_tenant_is_on_time_beside_one_of_tier_batch_that_floods() -> None:
    world = pool()
    submit(world, "chat", 6.0, 0.1, 15.0, terms=Terms(Tier.INTERACTIVE))
    submit(world, "night", 30.0, 0.1, 15.0, terms=Terms(Tier.BATCH))
    world.run(300)
    assert on_time(of(world, "chat")) >= 0.98
    assert on_time(of(world, "night")) < 0.6
    assert all(client.finished for client in world.clients.values()), "batch waits, and is answered"


def test_a_lower_tier_is_on_time_where_there_is_time_for_all() -> None:
    world = pool()
    submit(world, "chat", 4.0, 0.1, 10.0, terms=Terms(Tier.INTERACTIVE))
    submit(world, "night", 4.0, 0.1, 10.0, terms=Terms(Tier.BATCH))
    world.run(60)
    assert on_time(list(world.clients.values())) == 1.0


# ---- nothing else changes --------------------------------------------------------------------------------------------


def decided(rate: float, tenant: Callable[[int], str]) -> list[tuple[float, list[cmd.Command]]]:
    """The commands of some seconds of two models, with requests at random of these tenants."""
    made: list[tuple[float, list[cmd.Command]]] = []
    world = pool(lambda now, event, commands: made.append((now, commands)))
    draw = Random(4)
    for i in range(int(12 * rate)):
        model = draw.choice((M0, M1))
        world.request(f"r{i}", model, 50, 40, at=draw.uniform(0.1, 12.0)).tenant = tenant(i)
    world.run(100)
    return made


def test_prompts_that_came_before_an_engine_had_their_model_count_as_those_that_came_after() -> None:
    world = pool()
    world.run(0.5)
    (engine,) = world.engines
    world.kill(engine)
    submit(world, "big", 60.0, 1.0, 21.0)
    submit(world, "small", 2.0, 8.0, 21.0)
    world.run(6.0, idle=False)
    world.start(engine)
    world.run(60.0)
    assert on_time(of(world, "small")) >= 0.97


def test_a_request_of_tier_batch_begins_before_deferred_ones_of_the_tier_above() -> None:
    world = pool()
    submit(world, "night", 200.0, 0.0, 1.0)
    for client in of(world, "night"):
        client.defer_s = 86_400.0
    submit(world, "flex", 2.0, 2.0, 6.0, terms=Terms(Tier.BATCH))
    world.run(60.0)
    assert on_time(of(world, "flex")) == 1.0


def test_a_weight_that_changes_counts_although_a_prompt_waits() -> None:
    clock = Clock()
    clock.arrive("a", 1.0, 1)
    clock.arrive("b", 1.0, 1)
    clock.arrive("a", 1.0, 4)
    assert clock.weight == 5
    clock.charge("a", 8.0)
    assert clock.lead("a") == pytest.approx(8.0 / 4 + 2.0 / 4)


@pytest.mark.parametrize("queue", ["emptied", "went on"])
def test_an_answer_that_was_shorter_than_expected_gives_no_credit_in_a_later_visit(queue: str) -> None:
    clock = Clock()
    for tenant in "abc":
        clock.arrive(tenant, 9.0)
    visit = clock.charge("a", 9.0)
    clock.depart("a", 9.0)
    if queue == "emptied":
        clock.depart("b", 9.0)
        clock.depart("c", 9.0)
        clock.arrive("b", 9.0)
        clock.arrive("c", 9.0)
    else:
        clock.charge("b", 12.0)
        clock.charge("c", 12.0)
    clock.arrive("a", 1.0)
    clock.settle("a", -8.0, visit)  # its answer was short, and ends now
    assert clock.lead("a") == 1.0
    clock.settle("a", 2.0, visit)
    assert clock.lead("a") == 3.0, "a longer answer is a debt"


@interpreted
def test_a_tenant_pays_for_its_prompts_and_for_the_tokens_that_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    paid: dict[str, float] = dict.fromkeys(("small", "big"), 0.0)
    owed = dict(paid)
    charge = Costs.charge

    def begins(costs: Costs, group: Group, seq: Sequence) -> None:
        row = member(seq)
        before = row.charged
        charge(costs, group, seq)
        if row.charged and not before:
            owed[seq.tenant] += row.cost_s + (40 - row.answer) * row.token_s

    def noted(clock: Clock, tenant: str, seconds: float) -> Visit:
        paid[tenant] += seconds
        return Visit(0.0, 1)

    def settled(clock: Clock, tenant: str, more_s: float, charged: Visit | None) -> None:
        paid[tenant] += more_s

    monkeypatch.setattr(Costs, "charge", begins)
    monkeypatch.setattr(Clock, "charge", noted)
    monkeypatch.setattr(Clock, "settle", settled)
    world = pool()
    submit(world, "small", 2.0, 0.1, 6.0)
    submit(world, "big", 40.0, 0.1, 6.0)
    world.run(60)
    assert min(owed.values()) > 0.0
    assert paid == pytest.approx(owed)


def test_one_tenant_alone_is_served_as_clients_without_a_key_even_in_overload() -> None:
    assert decided(40.0, lambda i: "only") == decided(40.0, lambda i: "")


def test_where_no_tenant_is_greedy_every_decision_is_the_one_of_a_single_tenant() -> None:
    assert decided(12.0, lambda i: "abc"[i % 3]) == decided(12.0, lambda i: "")


def test_a_tenant_that_floods_one_model_is_served_as_others_at_another_one() -> None:
    """A clock is a model's: what a tenant has had of m1 puts it behind no tenant at m0."""
    world = pool()
    submit(world, "a", 60.0, 0.1, 6.0, M1)
    submit(world, "b", 4.0, 0.1, 6.0, M1)
    submit(world, "a", 1.0, 0.1, 6.0)
    world.run(3.0)
    policy = world.scheduler._policy
    assert isinstance(policy, SlackPolicy)
    clocks = {model.name: standing.clock(((0, False), "")) for model, standing in policy._table.standings.items()}
    assert clocks[M1].demand_s("a") > 0.2
    assert clocks[M0].demand_s("a") < 0.2
    world.run(300)
    assert clocks[M1].known == 0, "an idle tenant is forgotten"


# ---- the clock -------------------------------------------------------------------------------------------------------

costs = st.floats(0.01, 1.0)
requests = st.lists(st.tuples(st.sampled_from("abcd"), costs), min_size=1, max_size=60)


def begin(clock: Clock, queues: dict[str, list[float]]) -> str:
    """The prompt that is next begins; returns whose it was."""
    tenant = next(iter(clock.order()))
    cost_s = queues[tenant].pop(0)
    clock.charge(tenant, cost_s)
    clock.depart(tenant, cost_s)
    return tenant


@given(requests, st.integers(0, 30))
def test_a_tenant_within_its_share_waits_for_one_prompt_of_each_other_tenant_at_most(
    waiting: list[tuple[str, float]], before: int
) -> None:
    """Goyal, Vin, Cheng 1996: one that comes anew begins where the one is that has had least."""
    clock, queues = Clock(), {tenant: list[float]() for tenant in "abcd"}
    for tenant, cost_s in waiting:
        clock.arrive(tenant, cost_s)
        queues[tenant].append(cost_s)
    for _ in range(min(before, len(waiting) - 1)):
        begin(clock, queues)
    clock.arrive("new", 0.5)
    queues["new"] = [0.5]
    order = list[str]()
    while not order or order[-1] != "new":
        order.append(begin(clock, queues))
    assert len(set(order)) == len(order)


@given(requests)
def test_of_tenants_that_wait_none_has_had_more_than_another_by_more_than_a_prompt_each(
    waiting: list[tuple[str, float]],
) -> None:
    clock, queues, had = Clock(), {tenant: list[float]() for tenant in "abcd"}, dict.fromkeys("abcd", 0.0)
    for tenant, cost_s in waiting:
        clock.arrive(tenant, cost_s)
        queues[tenant].append(cost_s)
    while all(queues[tenant] for tenant, _ in waiting):
        heads = {tenant: queue[0] for tenant, queue in queues.items() if queue}
        tenant = begin(clock, queues)
        had[tenant] += heads[tenant]
        served = [had[tenant] for tenant in heads]
        assert max(served) - min(served) <= 2.0


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), costs), max_size=300))
def test_a_clock_keeps_nothing_of_tenants_that_are_idle(steps: list[tuple[str, bool, float]]) -> None:
    clock, waiting = Clock(), dict.fromkeys("abcdefgh", 0)
    for tenant, arrives, cost_s in steps:
        if arrives:
            clock.arrive(tenant, 0.5)
            waiting[tenant] += 1
        elif waiting[tenant]:
            clock.charge(tenant, cost_s)
            clock.depart(tenant, 0.5)
            waiting[tenant] -= 1
        assert clock.active == sum(count > 0 for count in waiting.values())
        assert clock.known <= 8 * (clock.active > 0)
        assert len(clock._heap) <= 2 * 8 + 65
    for tenant, count in waiting.items():
        for _ in range(count):
            clock.depart(tenant, 0.5)
    assert (clock.known, clock.active, clock.total_s) == (0, 0, 0.0)


def test_a_tenant_that_comes_back_has_neither_credit_for_its_absence_nor_loses_its_debt() -> None:
    clock = Clock()
    for tenant in ("a", "a", "b", "b"):
        clock.arrive(tenant, 1.0)
    clock.charge("a", 5.0)
    clock.depart("a", 1.0)
    clock.depart("a", 1.0)
    clock.charge("b", 3.0)
    clock.arrive("a", 1.0)
    clock.arrive("c", 1.0)
    assert list(clock.order()) == ["b", "c", "a"]
    assert clock.lead("a") == 5.0 - 3.0 + 1.0


# ---- places of a batch ---------------------------------------------------------------------------------------------


def sequence(name: str, tenant: str, arrived: float) -> Sequence:
    """Due two seconds after its arrival."""
    event = ev.Submitted(SeqId(name, 0), 1, GatewayId("g"), M0, arrived, 50, 0, 40, tenant=tenant)
    seq = Sequence(event, Model(ModelConfig(M0, SLO), 0.0), 1)
    seq.row = Member(seq)
    return seq


members = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-9, 9)), min_size=1, max_size=40)


@given(members, st.integers(1, 40))
@example([("a", 0), ("a", 0), ("b", 1), ("b", -3)], 2)  # one of b's is not due soon
def test_who_needs_no_more_places_than_its_part_has_them_be_it_late_or_in_time(
    these: list[tuple[str, int]], places: int
) -> None:
    ready = [sequence(str(i), tenant, float(at)) for i, (tenant, at) in enumerate(these)]
    pressed = [seq for seq in ready if seq.arrival + 2.0 < 3.0]
    first = {seq.id for seq in in_places(list(ready), places, now=0.0, soon_s=3.0)[:places]}
    tenants = {seq.tenant for seq in pressed}
    for tenant in tenants:
        own = [seq for seq in pressed if seq.tenant == tenant]
        if len(tenants) > 1 and len(own) * len(tenants) <= places:
            assert {seq.id for seq in own} <= first


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=40), st.integers(1, 40))
def test_places_of_one_tenant_are_for_those_in_time_first_and_of_them_for_who_is_due_first(
    arrivals: list[int], places: int
) -> None:
    ready = [sequence(str(i), "a", float(at)) for i, at in enumerate(arrivals)]
    expected = sorted(ready, key=lambda seq: (seq.arrival + 2.0 < 0.0, seq.arrival))
    assert in_places(list(ready), places, now=0.0, soon_s=1.0) == expected


@given(members, st.integers(0, 40))
def test_where_memory_is_short_who_has_most_sequences_loses_those_that_are_due_last(
    these: list[tuple[str, int]], count: int
) -> None:
    ready = [sequence(str(i), tenant, float(at)) for i, (tenant, at) in enumerate(these)]
    order = due_last(ready)
    leaving, left = order[:count], Counter(seq.tenant for seq in order[count:])
    assert all(left[seq.tenant] + 1 >= max(left.values(), default=0) for seq in leaving)
    for tenant in "abc":
        own = [seq.arrival for seq in order if seq.tenant == tenant]
        assert own == sorted(own, reverse=True)
