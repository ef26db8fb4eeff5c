"""Prompts that begin alike: the texts of sessions, the cache of an engine beside that of a sidecar, and whole runs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.agents import MOST_COMPUTED, RATIO, figures
from simulator.runs import plain_device
from small_world import BLOCK_TOKENS, SLAB_BYTES, small_world

from aegaeon_native import EventTable, SlabPool
from aegaeon_scheduler import COMPILED
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import InstanceId, ModelName, Role, Slo
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.kv.sequences import SequenceTable
from aegaeon_sidecar.kv.writeback import Writeback as SidecarWriteback
from aegaeon_sidecar.kv.writeback_queue import WritebackQueue
from aegaeon_sidecar.memory.copier import Copier
from aegaeon_sidecar.memory.leases import Lending
from aegaeon_sidecar.memory.tiers import Tier
from aegaeon_simulator.engine.prefix import AHEAD_SHARE, PrefixCache
from aegaeon_simulator.engine.writeback import Writeback
from aegaeon_simulator.errors import SettingsError
from aegaeon_simulator.pool.clients import Clients
from aegaeon_simulator.pool.world import World
from aegaeon_simulator.results.report import prompt_tokens
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Arrival, TraceError, Workload, read_trace
from aegaeon_simulator.workload.content import Content, contents, least_tokens

TALK = (Arrival(0.0, 0, 100, 20, session="a"), Arrival(1.0, 0, 160, 20, session="a", pause_s=2.0))


def common(first: Content, second: Content, tokens: int) -> int:
    """Tokens, in blocks of one, with which both begin."""
    pairs = zip(first.spans(1, tokens), second.spans(1, tokens), strict=False)
    return sum(min(a.end, b.end) - a.first for a, b in pairs if (a.text, a.first) == (b.text, b.first))


# -- texts -----------------------------------------------------------------------------------------------------------


def test_a_prompt_begins_with_the_prompt_and_the_answer_before_it_in_its_session() -> None:
    first, second, other, without = contents([*TALK, replace(TALK[1], session="b"), Arrival(3.0, 0, 160, 20)])
    assert common(first, second, 160) == 160
    assert common(first, other, 160) == common(first, without, 160) == 0


def test_an_answer_that_is_left_out_is_followed_by_new_text() -> None:
    first, second, third = contents([TALK[0], replace(TALK[1], input_tokens=110), replace(TALK[1], input_tokens=140)])
    assert common(first, second, 200) == 100
    assert common(second, third, 200) == 200


def test_a_prompt_shorter_than_the_one_before_begins_anew_behind_what_all_share() -> None:
    begin = [replace(a, shared_tokens=64) for a in (*TALK, Arrival(2.0, 0, 90, 5, session="a"))]
    other_model, other_tenant = replace(begin[0], model=1), replace(begin[0], tenant="x")
    first, _, third, fourth, fifth, sixth = contents(
        [*begin, replace(begin[0], session="c"), other_model, other_tenant]
    )
    assert common(first, third, 90) == common(first, fourth, 90) == 64
    assert common(first, fifth, 90) == common(first, sixth, 90) == 0


def test_the_least_to_compute_is_what_a_cache_without_limits_leaves() -> None:
    first, second = contents(TALK)
    # 119 tokens of the first prompt and its answer have KV: 7 blocks of 16
    assert least_tokens([(first, 100, 20), (second, 160, 20)], 16) == 100 + 160 - 112
    assert least_tokens([(first, 96, 1), (first, 96, 1)], 16) == 96 + 16, "the last token is always computed"


def test_a_trace_may_have_pauses_and_shared_beginnings(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    header = "t_s,model,model_kind,input_len,output_len,session,pause_s,shared_len\n"
    path.write_text(f"{header}0,a,7b,50,6,s,1.5,40\n1,a,7b,60,6,s,,\n")
    first, second = read_trace(path).arrivals
    assert (first.pause_s, first.shared_tokens, second.pause_s, second.shared_tokens) == (1.5, 40, 0.0, 0)
    path.write_text(f"{header}0,a,7b,50,6,s,-1,40\n")
    with pytest.raises(TraceError, match="pause_s is '-1'; it must be seconds, 0 or more"):
        read_trace(path)


# -- the cache -------------------------------------------------------------------------------------------------------


def test_the_same_blocks_are_evicted_as_by_a_sidecar() -> None:
    """Texts are computed, used again and released in any order; then memory is taken until nothing is left."""
    draw = random.Random(7)
    now = 0.0
    tier = Tier("device", SlabPool.private("prefixes", 4096, 64), lambda: now)
    tier.add_shape("s", 4096)
    cache = PrefixCache(4096, 0)
    names = {text: [f"{text}/{i}".encode().ljust(16) for i in range(12)] for text in range(5)}
    for step in range(20):
        now += draw.uniform(0.1, 3.0)
        text, content = step % 5, Content(((step % 5, 0),))
        length, block_s = draw.randint(2, 12), draw.choice([0.01, 0.05])
        known = tier.index("s").find(names[text][:length])
        cache.hold(step, content, 16, 4096)
        cache.reused(content, 16, len(known))
        blocks, _ = tier.share("s", known, length, 64)
        tier.count_reuse("s", blocks[list(known)], block_s)
        tier.index("s").publish(names[text][len(known) : length], blocks[len(known) :].tolist())
        tier.release("s", blocks, length, block_s)
        cache.release(step, length, now, block_s)
    now += 1.0
    while tier.pool.free < 64:
        taken = tier.take(tier.pool.free + 1)
        tier.pool.give(taken)
        cache.fit(64 * 4096 - len(taken) * 4096, now)
        cache.check()
        held = {text: len(tier.index("s").find(names[text])) for text in names}
        assert held == {text: cache.end(text) for text in names}, f"{len(taken)} slabs taken"


class Beside:
    """A sidecar's device and host with the lane that copies between them, and the caches of a modelled engine."""

    def __init__(self, folder: Path, slabs: int, host_slabs: int, ahead_slabs: int = 0) -> None:
        self.now, self.slabs, self.host_slabs = 0.0, slabs, host_slabs
        self.tiers = [
            Tier(name, SlabPool.private(name, 4096, count), lambda: self.now)
            for name, count in (("device", slabs), ("host", host_slabs))
        ]
        for tier in self.tiers:
            tier.add_shape("s", 4096)
        self.caches = [PrefixCache(4096, 0), PrefixCache(4096, int(ahead_slabs / AHEAD_SHARE) * 4096)]
        self.monitor, self.lending = Monitor(), Lending(folder / "x.leases")
        table = SequenceTable(*self.tiers, self.lending, WritebackQueue(self.monitor))
        self.queue, self.copier = table.writeback, Copier("out", EventTable.private(8))
        self.writeback = SidecarWriteback(KvMemory(self.monitor, *self.tiers, table), self.copier)

    def run(self, user: int, text: int, names: list[bytes], block_s: float) -> None:
        """A sequence of these blocks reuses what the device has, ends, and is copied to the host."""
        tier, cache, content = self.tiers[0], self.caches[0], Content(((text, 0),))
        known = tier.index("s").find(names)
        cache.hold(user, content, 16, 4096)
        cache.reused(content, 16, len(known))
        blocks, _ = tier.share("s", known, len(names), self.slabs)
        tier.count_reuse("s", blocks[list(known)], block_s)
        tier.index("s").publish(names[len(known) :], blocks[len(known) :].tolist())
        tier.release("s", blocks, len(names), block_s)
        cache.release(user, len(names), self.now, block_s)
        with self.monitor.changed:
            self.queue.add("s", names)
        while self.writeback.begin():
            self.writeback.finish()
        missing = self.caches[1].lacks(cache, content, 16, len(names))
        self.caches[1].level(cache, content, 16, len(names))
        if missing:
            value = cache.mean_value(self.caches[1], content, 16, len(names), missing, self.now)
            if self.caches[1].make_room(missing * 4096, 4096, value, self.host_slabs * 4096, self.now):
                self.caches[1].copy(cache, content, 16, 4096, len(names), missing)
        self.caches[1].level(cache, content, 16, len(names))

    def take(self, at: int, count: int) -> None:
        """Memory of the device, or of the host, is needed for a moment."""
        tier = self.tiers[at]
        tier.pool.give(tier.take(count))
        self.caches[at].fit((self.slabs - count) * 4096, self.now)

    def close(self) -> None:
        self.copier.close()
        self.lending.close()
        for tier in self.tiers:
            tier.close()


def test_the_same_blocks_are_copied_to_the_host_and_evicted_there_as_by_a_sidecar(tmp_path: Path) -> None:
    draw, both = random.Random(11), Beside(tmp_path, slabs=64, host_slabs=64)
    names = {text: [f"{text}/{i}".encode().ljust(16) for i in range(12)] for text in range(5)}

    def same(at: int) -> bool:
        held = {text: len(both.tiers[at].index("s").find(names[text])) for text in names}
        return held == {text: both.caches[at].end(text) for text in names}

    for step in range(30):
        both.now += draw.uniform(0.1, 3.0)
        text = step % 5
        both.run(step, text, names[text][: draw.randint(2, 12)], draw.choice([0.01, 0.05]))
        if step % 3 == 0:
            both.take(0, draw.randint(30, 64))
        assert same(0), f"device after step {step}"
        assert same(1), f"host after step {step}"
    assert sum(map(both.caches[1].end, names)) > sum(map(both.caches[0].end, names))
    both.now += 1.0
    for count in range(1, 65):
        both.take(1, count)
        both.caches[1].check()
        assert same(1), f"{count} slabs of the host taken"
    both.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_full_host_takes_the_same_blocks_as_that_of_a_sidecar(tmp_path: Path, seed: int) -> None:
    draw, both = random.Random(seed), Beside(tmp_path, slabs=64, host_slabs=16, ahead_slabs=3)
    names = {text: [f"{text}/{i}".encode().ljust(16) for i in range(12)] for text in range(5)}
    refused = 0
    for step in range(60):
        both.now += draw.uniform(0.1, 3.0)
        text = draw.randrange(5)
        run = names[text][: draw.randint(2, 12)]
        both.run(step, text, run, 0.05 if text < 3 else 1e-5)
        held = {text: len(both.tiers[1].index("s").find(names[text])) for text in names}
        assert held == {text: both.caches[1].end(text) for text in names}, f"step {step}"
        refused += held[text] < len(run)
    assert 5 < refused < 55
    both.close()


def test_a_text_in_use_stays_and_counts_as_cached_when_its_last_user_leaves() -> None:
    cache = PrefixCache(100, 0)
    both = Content(((1, 0), (2, 32)))
    cache.hold("a", both, 16, 50)
    cache.publish("a", 3)
    cache.hold("b", Content(((1, 0), (3, 32))), 16, 50)
    cache.fit(0, 1.0)
    assert (cache.end(1), cache.end(2), cache.nbytes) == (2, 3, 0)
    cache.release("a", 3, 1.0, 0.1)
    assert cache.nbytes == 50, "the beginning is still used"
    cache.release("b", 2, 2.0, 0.1)
    assert cache.nbytes == 150
    cache.fit(100, 3.0)
    assert (cache.end(1), cache.end(2)) == (2, 0), "what follows goes first"
    cache.check()


# -- runs ------------------------------------------------------------------------------------------------------------


def run(requests: tuple[Arrival, ...], **changes: object) -> tuple[dict[str, float], list[float]]:
    """Tokens of prompts, and the seconds to each first token."""
    device = replace(plain_device(step_s=0.05, prefill_s=0.01), block_tokens=16, **changes)
    latency = replace(device.kinds["plain"].latency, p1=1e-3)
    device = replace(device, kinds={"plain": replace(device.kinds["plain"], latency=latency)})
    outcome = simulate(Run(Settings("slack", Split(unified=1), Slo(10.0, 0.1)), Workload(("plain",), requests), device))
    return prompt_tokens(outcome), [r.times[0] for r in outcome.requests]


def test_the_second_prompt_of_a_session_is_computed_from_where_it_differs() -> None:
    tokens, first_s = run(TALK)
    assert tokens == {"computed": 148.0, "reused": 112.0, "least": 148.0, "computed_by_least": 1.0}
    assert first_s[1] < first_s[0] - 0.05
    alone, _ = run(tuple(replace(a, session="") for a in TALK))
    assert alone == {}


def test_a_pause_begins_when_the_answer_before_has_ended() -> None:
    device = plain_device(step_s=0.05, prefill_s=0.1)
    settings = Settings("slack", Split(unified=1), Slo(10.0, 0.1))
    first, second = simulate(Run(settings, Workload(("plain",), TALK), device)).requests
    assert second.arrival_s == pytest.approx(first.arrival_s + first.times[-1] + 2.0)


def test_requests_that_share_a_beginning_compute_it_once() -> None:
    two = (Arrival(0.0, 0, 100, 5, shared_tokens=80), Arrival(5.0, 0, 100, 5, shared_tokens=80))
    tokens, _ = run(two)
    assert tokens["reused"] == 80.0


def talks(count: int, models: int, seed: int) -> tuple[Arrival, ...]:
    """Sessions of four requests each, whose prompts grow."""
    draw = random.Random(seed)
    requests = []
    for session in range(count):
        length, at = draw.randint(40, 300), draw.uniform(0.0, 3.0)
        for _ in range(4):
            answer = draw.randint(5, 60)
            pause_s = draw.uniform(0.0, 0.5)
            requests.append(Arrival(at, session % models, length, answer, "", f"s{session}", pause_s=pause_s))
            length += answer + draw.randint(10, 100)
    return tuple(sorted(requests, key=lambda a: a.t_s))


def small(models: int, engines: int, host_slabs: int = 200) -> World:
    config = SchedulerConfig(latency=LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9))
    return small_world([Role.UNIFIED] * engines, models, slabs=160, host_slabs=host_slabs, config=config)


@pytest.mark.parametrize("seed", range(6))
def test_caches_lose_nothing_while_groups_are_preempted_and_engines_die(seed: int) -> None:
    world = small(models=4, engines=2)
    requests = talks(24, 4, seed)
    clients = Clients(world, [ModelName(f"m{i}") for i in range(4)], requests)
    world.run(until=4.0)
    world.kill(InstanceId("e0"))
    world.run(until=6.0)
    world.start(InstanceId("e0"))
    world.run(until=300.0)
    served = clients.served()
    assert all(r.finished or r.refused for r in served)
    assert sum(r.finished for r in served) > 40
    for engine in world.engines.values():
        for tier in (engine.state.device, engine.state.host):
            tier.cache.check()
            assert tier.cache.nbytes <= tier.free * SLAB_BYTES + SLAB_BYTES
    reused = sum(engine.state.usage.reused_tokens for engine in world.engines.values())
    assert reused > 0
    assert reused % BLOCK_TOKENS == 0


def test_what_left_the_device_is_found_on_the_host() -> None:
    """Two models that do not fit beside each other preempt one another: the KV of the first goes by way of the host."""
    world = small(models=2, engines=1)
    long = [Arrival(0.1, 0, 400, 120, session="a"), Arrival(0.1, 0, 600, 5, session="a", pause_s=3.0)]
    short = [Arrival(0.9, 1, 400, 4), Arrival(2.0, 1, 100, 300)]
    Clients(world, [ModelName("m0"), ModelName("m1")], [long[0], long[1], *short])
    engine = world.engines[InstanceId("e0")]
    world.run(until=60.0)
    assert engine.state.usage.reused_tokens >= 400


def test_what_ended_on_the_device_is_found_on_the_host_after_its_memory_was_needed() -> None:
    """Without a swap-out: what is cached on the device goes between two prompts of a session."""
    world = small(models=1, engines=1)
    talk = [Arrival(0.1, 0, 400, 20, session="a"), Arrival(0.1, 0, 600, 5, session="a", pause_s=6.0)]
    Clients(world, [ModelName("m0")], talk)
    engine = world.engines[InstanceId("e0")]
    world.run(until=5.0)
    assert engine.state.device.cache.nbytes > 0
    engine.state.device.cache.fit(0, world.clock.now)
    world.run(until=60.0)
    assert engine.state.usage.reused_tokens >= 400


@pytest.mark.parametrize("host_slabs", [0, 1, 200])
def test_what_the_host_has_no_room_for_is_copied_once(host_slabs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world, copies = small(1, 1, host_slabs), list[int]()
    copy = Writeback._copy

    def counted(self: Writeback, chain: Any, missing: int) -> None:
        copies.append(missing)
        copy(self, chain, missing)

    monkeypatch.setattr(Writeback, "_copy", counted)
    Clients(world, [ModelName("m0")], [Arrival(0.1, 0, 400, 20, session="a"), Arrival(3.0, 0, 300, 20, session="b")])
    world.run(until=25.0, idle=False)
    assert 0 < len(copies) <= 4
    assert not world.engines[InstanceId("e0")]._writeback._chains


def test_baselines_have_no_prefix_cache() -> None:
    requests = (Arrival(0.0, 0, 100, 4, shared_tokens=50),)
    device = plain_device(step_s=0.05, prefill_s=0.1)
    settings = Settings("vllm-sleep", Split(unified=1), Slo(10.0, 0.1))
    with pytest.raises(SettingsError, match="without a prefix cache"):
        simulate(Run(settings, Workload(("plain",), requests), device))


@pytest.mark.skipif(not COMPILED, reason="more than a minute with the interpreted core: make test-core")
@pytest.mark.parametrize(
    ("panel", "seed"),
    [
        ("16 models, 64 agents", 64253),
        ("24 models, 96 agents", 3),
        ("2 models, 160 agents", 2),
        ("2 models, 160 agents", 28749),
    ],
)
def test_agents_prompts_are_computed_where_their_beginning_is_cached_or_from_the_host(panel: str, seed: int) -> None:
    """16 models: 1.5 without copies on the host. 24: 1.14 where groups wait for their home until half of TTFT is used.
    Two hot ones: 1.37 where a conversation leaves each group that new prompts find full, 1.13 at 0.9 of its engine.
    Limits were chosen on other seeds than 28749."""
    measured = figures(panel, "slack", seed)
    assert measured[RATIO] <= MOST_COMPUTED
    assert measured["tokens on time"] > 0.99
