"""More long answers than memory, and a host tier of one slab: unservable requests are refused within hold_s."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, policy_settings
from aegaeon_scheduler.core.domain import ModelName, RejectCode, Role, SeqId
from aegaeon_simulator.pool.world import World

HOLD_S = 1.0
LONG = 800
POOLS = [[Role.UNIFIED], [Role.PREFILL, Role.DECODE]]


class Watch:
    """When each sequence was last given up or last stopped waiting, and how often it was given up."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.losses: Counter[SeqId] = Counter()
        self.idle_since: dict[SeqId, float] = {}
        self.late: list[str] = []

    def __call__(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        for command in commands:
            if isinstance(command, cmd.SequenceLost):
                self.losses[command.seq] += 1
                self.idle_since[command.seq] = now
            elif isinstance(command, cmd.Reject):
                self._rejected(now, command)

    def _rejected(self, now: float, reject: cmd.Reject) -> None:
        assert self.world is not None
        client = self.world.clients[reject.seq]
        served = client.arrival + (client.times[-1] if client.times else 0.0)
        waited = now - max(served, self.idle_since.get(reject.seq, 0.0))
        if waited > HOLD_S + 0.6:  # a heartbeat may pass before a turn's end is known
            self.late.append(f"{reject.seq} waited {waited:.1f} s: {reject.reason}")


def play(policy: str, roles: list[Role], models: int, slabs: int, seed: int = 1) -> tuple[World, Watch]:
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    config = SchedulerConfig(policy=policy_settings(policy), hold_s=HOLD_S, latency=latency)
    watch = Watch()
    limits = {"slabs": slabs, "host_slabs": 1, "ttfts": (HOLD_S,)}  # what is due later is held for longer
    world = small_world(roles, models=models, config=config, observe=watch, **limits)
    watch.world = world
    chance = random.Random(seed)
    for i in range(24):
        world.request(f"r{i}", ModelName(f"m{i % models}"), 64, LONG, round(chance.uniform(0, 1), 3))
    world.run(until=200)
    return world, watch


@pytest.mark.parametrize("policy", ["paper", "slack"])
@pytest.mark.parametrize("roles", POOLS, ids=["unified", "split"])
@pytest.mark.parametrize(("models", "slabs"), [(1, 112), (1, 125), (2, 125), (1, 230)])
def test_requests_that_cannot_be_served_are_refused_within_hold_s(policy, roles, models, slabs):
    world, watch = play(policy, roles, models, slabs)
    assert not [client.seq for client in world.clients.values() if client.open]
    assert watch.late == []
    for client in world.clients.values():
        assert client.finished or client.rejected is not None
        assert client.rejected is None or client.rejected.code in (RejectCode.OVERLOADED, RejectCode.TOO_LONG)
    world.scheduler.check()


@pytest.mark.parametrize("policy", ["paper", "slack"])
@pytest.mark.parametrize("roles", POOLS, ids=["unified", "split"])
def test_no_sequence_is_recomputed_repeatedly_and_then_failed(policy, roles):
    world, watch = play(policy, roles, 1, 125)
    assert sum(watch.losses.values()) <= 3 * len(world.clients)
    assert sum(client.finished for client in world.clients.values()) >= 3


def test_decoding_continues_while_a_prompt_waits_for_memory():
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    config = SchedulerConfig(latency=latency)
    world = small_world([Role.UNIFIED], models=1, slabs=112, host_slabs=1, config=config)
    first = world.request("first", ModelName("m0"), 900, 300, 0.0)
    second = world.request("second", ModelName("m0"), 900, 10, 0.5)
    world.run(until=20)
    assert first.finished
    assert second.finished
    assert max(b - a for a, b in zip(first.times, first.times[1:], strict=False)) < 0.5


def test_a_prompt_whose_kv_no_host_tier_can_hand_off_is_refused_at_once():
    world = small_world([Role.PREFILL, Role.DECODE], models=1, slabs=230, host_slabs=1)
    client = world.request("long", ModelName("m0"), 700, 10, 1.0)
    world.run(until=5)
    assert client.rejected is not None
    assert client.rejected.code is RejectCode.TOO_LONG
    assert client.times == []


@pytest.mark.parametrize(("seed", "roles"), [(23, POOLS[0]), (24, POOLS[1])], ids=["unified", "split"])
def test_a_sequence_that_comes_back_joins_a_turn_with_what_its_copy_has_left(seed, roles):
    world, _ = play("slack", roles, 1, 112, seed)  # a grant beyond what is free breaks the wire's rules
    assert any(client.finished for client in world.clients.values())
