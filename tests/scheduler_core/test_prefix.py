"""Engines on which a prompt's beginning is expected: what the core notes, what it makes of it, and what corrects it."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import BLOCK_TOKENS, interpreted, served, small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core import prefix
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import GatewayId, InstanceId, ModelConfig, ModelName, Role, SeqId, Slo
from aegaeon_scheduler.core.log import LogWriter, replay
from aegaeon_scheduler.core.prefix import MOST_ENGINES, MOST_MISSES, MOST_STEPS, Prefixes, step_tokens
from aegaeon_scheduler.core.state import Instance, Model, Sequence
from aegaeon_simulator.pool.clients import Clients
from aegaeon_simulator.pool.world import World
from aegaeon_simulator.workload import Arrival

M0 = ModelName("m0")
LATENCY = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)


def model(name: str = "m0") -> Model:
    return Model(ModelConfig(ModelName(name), Slo(2.0, 0.1)), 0.0)


def engine(name: str, incarnation: str = "1") -> Instance:
    up = next(e for e in _hellos(name, incarnation) if isinstance(e, ev.InstanceUp))
    return Instance(up, 1)


def _hellos(name: str, incarnation: str) -> list[ev.Event]:
    world = small_world([Role.UNIFIED])
    memory = world.engines[InstanceId("e0")].state.memory()
    return [
        ev.InstanceUp(
            InstanceId(name), incarnation, "node-0", Role.UNIFIED, "modelled", 1 << 20, 250, 400, 16, memory, (), (), ()
        )
    ]


def prompt(chain: list[int], tokens: int = 0, of: Model | None = None) -> Sequence:
    """A prompt whose chain this is."""
    length = tokens or len(chain) * step_tokens(len(chain) * prefix.LEAST_STEP) + 1
    event = ev.Submitted(SeqId(f"r{random.random()}", 0), 1, GatewayId("g"), M0, 0.0, length, 0, 9, chain=tuple(chain))
    return Sequence(event, of or model(), 1)


def expect(prefixes: Prefixes, seq: Sequence, *engines: Instance) -> dict[InstanceId, int]:
    seq.cached = prefixes.find(seq, {inst.id: inst for inst in engines})
    return seq.cached


# -- what is noted -----------------------------------------------------------------------------------------------------


def test_a_prompt_has_few_hashes_and_a_longer_one_has_them_where_a_shorter_one_has() -> None:
    for tokens in (1, 127, 128, 4096, 4097, 40_000, 1_000_000):
        step = step_tokens(tokens)
        assert tokens // step <= MOST_STEPS
        assert step_tokens(2 * tokens) % step == 0


def test_the_longest_beginning_of_each_engine_is_expected_there() -> None:
    prefixes, e0, e1 = Prefixes(), engine("e0"), engine("e1")
    prefixes.computed(prompt([1, 2]), e0)
    prefixes.computed(prompt([1]), e1)
    assert expect(prefixes, prompt([1, 2, 3]), e0, e1) == {e0.id: 256, e1.id: 128}
    assert expect(prefixes, prompt([9, 2, 3], tokens=600), e0, e1) == {e0.id: 256}, "equal hashes are equal beginnings"
    assert expect(prefixes, prompt([1, 2], tokens=256), e0, e1)[e0.id] == 255, "the last token is computed"
    assert expect(prefixes, prompt([1, 2]), e1) == {e1.id: 128}, "e0 is not attached"
    assert expect(prefixes, prompt([1, 2]), engine("e0", "2"), e1) == {e1.id: 128}, "a new process has nothing"


def test_only_another_request_makes_a_beginning_one_of_several() -> None:
    """Not the same, which is prefilled here and adopted there, or computed again."""
    prefixes, e0, e1 = Prefixes(), engine("e0"), engine("e1")
    first = prompt([1, 2])
    for inst in (e0, e1, e0):
        prefixes.computed(first, inst)
    assert not prefixes.tokens(M0)
    prefixes.computed(prompt([1, 5]), e1)
    assert sum(prefixes.tokens(M0).values()) == 2 * 128  # of the first hash, on both
    prefixes.forget(M0)
    assert not len(prefixes)
    assert not prefixes.check()


def test_what_was_not_found_is_expected_no_more() -> None:
    prefixes, e0 = Prefixes(), engine("e0")
    prefixes.computed(prompt([1, 2, 3]), e0)
    request = prompt([1, 2, 3])
    expect(prefixes, request, e0)
    prefixes.reused(request, e0, 140)
    assert expect(prefixes, prompt([1, 2, 3]), e0) == {e0.id: 128}


def test_an_engine_that_reuses_nothing_is_believed_to_until_it_does() -> None:
    prefixes, e0 = Prefixes(), engine("e0")
    for _ in range(MOST_MISSES):
        prefixes.computed(prompt([1, 2]), e0)
        request = prompt([1, 2])
        assert expect(prefixes, request, e0)
        prefixes.reused(request, e0, 0)
    prefixes.computed(prompt([1, 2]), e0)
    assert expect(prefixes, prompt([1, 2]), e0) == {}
    prefixes.reused(prompt([1, 2]), e0, 16)
    assert expect(prefixes, prompt([1, 2]), e0) == {e0.id: 256}


@interpreted
def test_the_least_recently_used_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "MOST_HASHES", 6)
    prefixes, e0 = Prefixes(), engine("e0")
    for chain in ([1, 2], [3, 4], [1, 2], [5, 6, 7]):
        prefixes.computed(prompt(chain), e0)
    assert len(prefixes) == 6
    assert expect(prefixes, prompt([1, 2]), e0) == {e0.id: 256}
    assert expect(prefixes, prompt([3]), e0) == {}
    assert prefixes.check() == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 6), st.booleans()), max_size=40))
def test_sums_of_tokens_are_those_of_what_is_noted(steps: list[tuple[int, int, int, bool]]) -> None:
    prefixes, engines, models = Prefixes(), [engine(f"e{i}") for i in range(7)], [model("a"), model("b")]
    for text, length, where, finds in steps:
        seq = prompt([10 * text + i for i in range(length)], of=models[text % 2])
        inst = engines[where]
        if finds:
            expect(prefixes, seq, *engines)
            prefixes.reused(seq, inst, 128 * (length // 2))
        else:
            prefixes.computed(seq, inst)
        assert prefixes.check() == []
        assert all(len(b.engines) <= MOST_ENGINES for b in prefixes._beginnings.values())


# -- what is made of it ------------------------------------------------------------------------------------------------


def talk(times: list[float], begin: int = 2000, more: int = 200, model: int = 0, name: str = "talk") -> list[Arrival]:
    """A conversation whose prompts grow."""
    return [Arrival(t, model, begin + more * i, 4, session=name) for i, t in enumerate(times)]


def world_of(engines: int, slabs: int = 160, prefix_reuse: bool = True) -> World:
    config = SchedulerConfig(latency=LATENCY, refine=False)
    return small_world([Role.UNIFIED] * engines, 2, slabs, config=config, prefix_reuse=prefix_reuse)


def turns(sent: list[cmd.Send]) -> list[cmd.Turn]:
    return [send.body for send in sent if isinstance(send.body, cmd.Turn) and send.body.prefill]


def recorded(world: World) -> list[cmd.Send]:
    sent: list[cmd.Send] = []

    def observe(now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        sent.extend(c for c in commands if isinstance(c, cmd.Send))
        world.scheduler.check()

    world.observe = observe
    return sent


def test_no_more_of_a_prompt_is_computed_in_a_turn_than_is_expected_to_be_left() -> None:
    world = world_of(1)
    sent = recorded(world)
    clients = Clients(world, [M0, ModelName("m1")], talk([0.1, 2.0]))
    world.run(until=10.0)
    assert all(r.finished for r in clients.served())
    last = turns(sent)[-1]
    assert sum(part.tokens for part in last.prefill) == 512
    assert world.engines[InstanceId("e0")].state.usage.reused_tokens == 2000


def test_where_the_cache_has_lost_it_the_rest_is_computed_in_further_turns() -> None:
    """An engine whose cache is off, as one of another configuration is: every token is computed, none is lost, and its
    turns are no longer than others."""
    world = world_of(1, prefix_reuse=False)
    sent = recorded(world)
    clients = Clients(world, [M0, ModelName("m1")], talk([0.1, 2.0, 4.0]))
    world.run(until=20.0)
    assert [len(r.times) for r in clients.served()] == [4, 4, 4]
    usage = world.engines[InstanceId("e0")].state.usage
    assert (usage.prefill_tokens, usage.reused_tokens) == (2000 + 2200 + 2400, 0)
    assert max(sum(part.tokens for part in turn.prefill) for turn in turns(sent)[1:]) <= 2400 - 512


def test_streams_beside_a_cache_that_is_off_come_no_later() -> None:
    def worst_gap_s(prefix_reuse: bool, session: str) -> float:
        world = small_world([Role.UNIFIED], 2, 400, config=SchedulerConfig(latency=LATENCY), prefix_reuse=prefix_reuse)
        requests = [Arrival(0.1, 1, 40, 200), *talk([0.5, 2.0, 3.5, 5.0], 3400, 100)]
        requests = [
            Arrival(a.t_s, a.model, a.input_tokens, a.output_tokens, session=a.session and session) for a in requests
        ]
        clients = Clients(world, [M0, ModelName("m1")], requests)
        world.run(until=60.0)
        stream = clients.served()[0].times
        return max(b - a for a, b in pairwise(stream))

    assert worst_gap_s(False, "talk") <= worst_gap_s(False, "") + 0.02


def test_a_hot_model_of_several_groups_keeps_conversations_where_they_were() -> None:
    def computed_by_least(chains: bool) -> float:
        config = SchedulerConfig(latency=LATENCY)
        world = small_world([Role.UNIFIED] * 3, 1, 1000, config=config, ttfts=(1.0,))
        draw, requests = random.Random(3), []
        for i in range(30):
            at = draw.uniform(0.0, 1.5)
            requests += talk([at + 2.0 * k for k in range(5)], 1500, 150, name=f"s{i}")
        requests = [
            Arrival(a.t_s, 0, a.input_tokens, 40, session=a.session) for a in sorted(requests, key=lambda a: a.t_s)
        ]
        clients = Clients(world, [M0], requests)
        with nullcontext() if chains else without_chains(world):
            world.run(until=200.0)
        assert all(r.finished for r in clients.served())
        least = clients.least_tokens(BLOCK_TOKENS)
        return sum(e.state.usage.prefill_tokens for e in world.engines.values()) / (least or 1)

    unaware, aware = computed_by_least(chains=False), computed_by_least(chains=True)
    assert aware <= 1.1
    assert unaware > aware + 0.2


def test_a_beginning_that_all_prompts_share_keeps_no_engine_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prompt of a hot model begins with the same 400 tokens: they go where there is time, as without them."""
    slow = replace(served(), latency=replace(LATENCY, p1=4e-4))  # of 1,200 tokens half a second
    monkeypatch.setattr("small_world.served", lambda *sizes, **named: slow)

    def late(engines: int, gap_s: float, chains: bool) -> int:
        config = SchedulerConfig(latency=slow.latency, refine=False)
        world = small_world([Role.UNIFIED] * engines, 1, 1000, config=config, ttfts=(2.0,))
        requests = [Arrival(1.0 + gap_s * i, 0, 1200, 100, session=f"s{i}", shared_tokens=400) for i in range(60)]
        clients = Clients(world, [M0], requests)
        with nullcontext() if chains else without_chains(world):
            world.run(until=200.0)
        return sum(r.times[0] > 2.0 for r in clients.served())

    for engines, gap_s in ((2, 0.25), (3, 0.17)):
        assert late(engines, gap_s, chains=True) <= late(engines, gap_s, chains=False) + 2


def without_chains(world: World) -> AbstractContextManager[object]:
    """Requests as of a scheduler that makes no hashes of prompts."""
    feed = world.feed
    return patch.object(world, "feed", lambda event: feed(_without_chain(event)))


def _without_chain(event: ev.Event) -> ev.Event:
    if not isinstance(event, ev.Submitted):
        return event
    return ev.Submitted(
        event.seq, event.epoch, event.gateway, event.model, event.arrival, event.prompt_tokens, event.prefix_tokens,
        event.max_tokens,
    )  # fmt: skip


def test_a_lost_engine_is_nobodys_home() -> None:
    world = world_of(2)
    recorded(world)
    clients = Clients(world, [M0, ModelName("m1")], talk([0.1, 1.0, 2.0, 4.0]))
    world.run(until=3.0)
    first = next(i for i, e in world.engines.items() if e.state.usage.prefill_tokens)
    world.kill(first)
    world.run(until=3.5)
    world.start(first)
    world.run(until=20.0)
    served_all = clients.served()
    assert all(r.finished for r in served_all)
    assert served_all[3].times[0] < 0.5


def test_a_log_of_conversations_replays(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    world = world_of(2)
    with path.open("w", encoding="utf-8") as out:
        log = LogWriter(out, world.scheduler.config, "1")
        replayed = World(world.scheduler.config, {M0: (served(), Slo(2.0, 0.1))}, list(world.specs.values()), 0.0005)
        replayed.observe = log.write
        replayed.feed(ev.CatalogChanged((ModelConfig(M0, Slo(2.0, 0.1)),)))
        Clients(replayed, [M0], [*talk([0.1, 1.0, 2.0]), *talk([0.2, 1.1, 2.1], name="other")])
        replayed.run(until=20.0)
    assert '"chain":[' in path.read_text("utf-8")
    result = replay(path)
    assert result.same, result.difference
