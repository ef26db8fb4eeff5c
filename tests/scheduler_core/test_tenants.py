"""Tenants of one model: who takes it from others comes late himself, shares follow weights, and tiers come first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ALIKE, GatewayId, ModelConfig, ModelName, Role, SeqId, Slo, Terms, Tier
from aegaeon_scheduler.core.policies.slack.tenants import Clock, in_places
from aegaeon_scheduler.core.slo import attainment
from aegaeon_scheduler.core.state import Model, Sequence
from aegaeon_simulator.pool.client import Client
from aegaeon_simulator.pool.world import World

M0, M1 = ModelName("m0"), ModelName("m1")
SLO = Slo(2.0, 0.1)
SLABS = 1500
LATENCY = LatencyConstants(c=2e-3, load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
Observe = Callable[[float, ev.Event, list[cmd.Command]], None]


def pool(observe: Observe = lambda now, event, commands: None, fair_share: float = 0.1) -> World:
    """One engine with room for two of four models; it carries about 23 requests of 40 tokens a second."""
    config = SchedulerConfig(SlackSettings(fair_share=fair_share), hold_s=1e9, latency=LATENCY, refine=False)
    return small_world([Role.UNIFIED], slabs=SLABS, host_slabs=2000, config=config, observe=observe)


def ask(
    world: World, tenant: str, rate: float, begin: float, end: float, *, terms: Terms = ALIKE, model: str = M0
) -> None:
    """So many requests a second from then until then."""
    for i in range(int((end - begin) * rate)):
        client = world.request(f"{tenant}-{model}-{i}", ModelName(model), 50, 40, at=begin + i / rate)
        client.tenant, client.terms = tenant, terms


def of(world: World, tenant: str) -> list[Client]:
    return [client for client in world.clients.values() if client.tenant == tenant]


def on_time(clients: list[Client]) -> float:
    return attainment((c.times, SLO, c.length) for c in clients).token


def tokens(clients: list[Client], begin: float, end: float) -> int:
    return sum(begin <= c.arrival + at < end for c in clients for at in c.times)


def flooded(fair_share: float = 0.1, apart: bool = True) -> list[Client]:
    """Requests of a tenant that asks for a tenth of what the model carries, beside one that asks for twice of it."""
    world = pool(fair_share=fair_share)
    ask(world, "small", 2.0, 0.1, 14.0)
    ask(world, "big", 50.0, 4.0, 9.0)
    small = of(world, "small")
    if not apart:
        for client in world.clients.values():
            client.tenant = ""
    world.run(300)
    assert all(client.finished for client in world.clients.values())
    return small


def test_a_tenant_that_asks_for_little_is_on_time_beside_one_that_floods_its_model() -> None:
    assert on_time(flooded()) >= 0.97
    assert on_time(flooded(apart=False)) < 0.9


def test_engine_time_of_tenants_that_both_flood_a_model_follows_their_weights() -> None:
    world = pool()
    ask(world, "heavy", 40.0, 0.1, 20.0, terms=Terms(weight=3))
    ask(world, "light", 40.0, 0.1, 20.0)
    world.run(20.0)
    heavy, light = (tokens(of(world, tenant), 5.0, 20.0) for tenant in ("heavy", "light"))
    assert heavy / light == pytest.approx(3.0, rel=0.05)


def test_tenants_that_are_alike_are_served_alike() -> None:
    world = pool()
    ask(world, "one", 20.0, 0.1, 15.0)
    ask(world, "two", 20.0, 0.1, 15.0)
    world.run(15.0)
    first, second = (tokens(of(world, tenant), 4.0, 15.0) for tenant in ("one", "two"))
    assert first / second == pytest.approx(1.0, rel=0.05)


def test_an_interactive_tenant_is_on_time_beside_one_of_tier_batch_that_floods() -> None:
    world = pool()
    ask(world, "chat", 6.0, 0.1, 15.0, terms=Terms(Tier.INTERACTIVE))
    ask(world, "night", 30.0, 0.1, 15.0, terms=Terms(Tier.BATCH))
    world.run(300)
    assert on_time(of(world, "chat")) >= 0.98
    assert on_time(of(world, "night")) < 0.6
    assert all(client.finished for client in world.clients.values()), "batch waits, and is answered"


def test_a_lower_tier_is_on_time_where_there_is_time_for_all() -> None:
    world = pool()
    ask(world, "chat", 4.0, 0.1, 10.0, terms=Terms(Tier.INTERACTIVE))
    ask(world, "night", 4.0, 0.1, 10.0, terms=Terms(Tier.BATCH))
    world.run(60)
    assert on_time(list(world.clients.values())) == 1.0


# ---- nothing else changes --------------------------------------------------------------------------------------------


def decided(rate: float, tenant: Callable[[int], str]) -> list[tuple[float, list[cmd.Command]]]:
    """The commands of some seconds of two models, asked at random by these tenants."""
    made: list[tuple[float, list[cmd.Command]]] = []
    world = pool(lambda now, event, commands: made.append((now, commands)))
    draw = Random(4)
    for i in range(int(12 * rate)):
        model = draw.choice((M0, M1))
        world.request(f"r{i}", model, 50, 40, at=draw.uniform(0.1, 12.0)).tenant = tenant(i)
    world.run(100)
    return made


def test_one_tenant_alone_is_served_as_clients_without_a_key_even_in_overload() -> None:
    assert decided(40.0, lambda i: "only") == decided(40.0, lambda i: "")


def test_where_no_tenant_is_greedy_every_decision_is_the_one_of_a_single_tenant() -> None:
    assert decided(12.0, lambda i: "abc"[i % 3]) == decided(12.0, lambda i: "")


def test_tenants_of_one_name_in_two_models_are_two() -> None:
    """Time that one has had of m1 puts it behind no one at m0."""
    world = pool()
    ask(world, "a", 90.0, 0.1, 6.0, model=M1)
    ask(world, "b", 9.0, 0.1, 6.0, model=M1)
    ask(world, "a", 1.0, 0.1, 6.0)
    world.run(3.0)
    table = world.scheduler._policy._table
    clocks = {group.model.name: group.clock for group in table.groups.values()}
    assert clocks[M1].fair
    assert not clocks[M0].fair


# ---- the clock and the places ----------------------------------------------------------------------------------------


def sequence(name: str, tenant: str, *, arrived: float = 0.0, terms: Terms = ALIKE) -> Sequence:
    event = ev.Submitted(SeqId(name, 0), 1, GatewayId("g"), M0, arrived, 50, 0, 40, tenant=tenant, terms=terms)
    return Sequence(event, Model(ModelConfig(M0, SLO), 0.0), 1)


costs = st.floats(0.01, 1.0)
queues = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(st.integers(1, 9), st.lists(costs, min_size=60, max_size=60)), min_size=2
)


@given(queues, st.integers(10, 60))
def test_of_tenants_that_wait_none_has_had_more_than_another_by_more_than_a_turn_each(queues, turns) -> None:
    """Goyal, Vin, Cheng 1996, theorem 1: |W_i / w_i - W_j / w_j| <= c_i / w_i + c_j / w_j."""
    clock = Clock()
    heads = {tenant: sequence(tenant, tenant, terms=Terms(weight=weight)) for tenant, (weight, _) in queues.items()}
    for tenant, head in heads.items():
        clock.joins(head, [other for other in heads.values() if other.tenant < tenant])
    clock.fair = True
    charged = dict.fromkeys(heads, 0.0)
    for _ in range(turns):
        first = min(heads.values(), key=clock.behind)
        cost = queues[first.tenant][1].pop()
        clock._charge(cost, [first])
        charged[first.tenant] += cost / first.terms.weight
    most = {tenant: 1.0 / weight for tenant, (weight, _) in queues.items()}
    assert all(abs(charged[i] - charged[j]) <= most[i] + most[j] + 1e-9 for i in charged for j in charged)


def test_a_tenant_that_comes_has_neither_credit_nor_debt() -> None:
    clock = Clock()
    a, b = sequence("a", "a"), sequence("b", "b")
    clock.joins(a, [])
    clock.joins(b, [a])
    clock._charge(5.0, [a])
    clock._charge(4.0, [b])
    clock._level = 4.0
    clock.joins(c := sequence("c", "c"), [a, b])
    assert clock.used("c") == 4.0
    clock.watch([a, b, c], 0.5)
    assert clock.fair
    clock.joins(a, [])  # no prompt waited: all are level
    assert not clock.fair
    assert clock.used("b") == clock.used("a") == 0.0


members = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=40)


@given(members, st.fixed_dictionaries({name: st.integers(1, 5) for name in "abc"}), st.integers(1, 40))
def test_places_of_a_batch_are_shared_by_weight_among_what_is_due(members, weights, count) -> None:
    those = [
        sequence(str(i), tenant, arrived=float(at), terms=Terms(weight=weights[tenant]))
        for i, (tenant, at) in enumerate(members)
    ]
    first = in_places(those, count, now=0.0, soon_s=99.0)[:count]
    asking = {seq.tenant for seq in those}
    for tenant in asking:
        chosen = [seq for seq in first if seq.tenant == tenant]
        part = count * weights[tenant] // sum(weights[name] for name in asking)
        assert len(chosen) >= min(part, sum(seq.tenant == tenant for seq in those))
        assert all(before.arrival <= after.arrival for before, after in pairwise(chosen)), "those due first"


def test_what_is_due_comes_first_then_late_ones_of_who_takes_more_than_its_part_then_who_is_ahead() -> None:
    batch, chat = Terms(Tier.BATCH), Terms(Tier.INTERACTIVE)
    due = [sequence("d0", "c", arrived=1.0, terms=chat), sequence("d1", "b", arrived=0.0, terms=batch)]
    ahead = [sequence("a0", "c", arrived=6.0, terms=chat), sequence("a1", "b", arrived=5.0, terms=batch)]
    late = [sequence("l0", "c", arrived=-8.0, terms=chat), sequence("l1", "b", arrived=-9.0, terms=batch)]
    assert in_places([*late, *ahead, *due], 2, now=1.5, soon_s=2.0) == [*due, *late, *ahead]
    within = [late[0], due[0], late[1], due[1], *ahead]
    assert in_places([*late, *ahead, *due], 9, now=1.5, soon_s=2.0) == within


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=40), st.integers(1, 40))
def test_places_of_one_tenant_are_for_those_that_are_due_first(arrivals, count) -> None:
    those = [sequence(str(i), "a", arrived=float(at)) for i, at in enumerate(arrivals)]
    assert in_places(those, count, now=0.0, soon_s=1.0) == sorted(those, key=lambda seq: seq.arrival)
