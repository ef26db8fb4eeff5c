"""Arbitrary traffic, losses, cancels and failures against modelled engines that assert every rule of the wire."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from small_world import examples, small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, SlackSettings, policy_settings
from aegaeon_scheduler.core.domain import FailureKind, InstanceId, ModelName, Role
from aegaeon_simulator.pool.world import World

ROLES = [
    [Role.UNIFIED],
    [Role.UNIFIED, Role.UNIFIED],
    [Role.PREFILL, Role.DECODE],
    [Role.PREFILL, Role.DECODE, Role.DECODE],
    [Role.PREFILL, Role.UNIFIED, Role.DECODE],
    [Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE],
]


@dataclass(frozen=True)
class Arrival:
    at: float
    model: int
    prompt: int
    length: int


@dataclass(frozen=True)
class Trouble:
    at: float
    kind: str
    who: int


# A prompt that is preempted while its last part runs, and is then to be handed off: one copy, not two.
GAVE_WAY = {
    "roles": ROLES[3],
    "slabs": 112,
    "host_slabs": 12,
    "max_batch": 1,
    "shapes": 1,
    "odd_blocks": False,
    "contents": 1,
    "delay_s": 0.0,
}
GAVE_WAY_ARRIVALS = [
    Arrival(0.587, 0, 700, 39),
    Arrival(0.587, 2, 1, 1),
    Arrival(0.587, 0, 700, 39),
    Arrival(0.587, 0, 700, 1),
    *(Arrival(0.0, 0, 1, length) for length in (23, 38, 1)),
]

# A load of equal weights behind one that fails is skipped, and so was every later one that joined it, for ever.
SKIPPED = GAVE_WAY | {"max_batch": 16, "contents": 1, "delay_s": 0.02}
SKIPPED_ARRIVALS = [
    Arrival(1.249, 1, 700, 9),
    Arrival(1.556, 0, 496, 30),
    Arrival(0.0, 3, 359, 13),
    Arrival(0.0, 2, 64, 51),
    Arrival(1.577, 0, 324, 14),
    Arrival(0.0, 0, 19, 2),
    Arrival(0.842, 0, 513, 54),
]
SKIPPED_TROUBLE = [Trouble(0.334, "gateway", 0), Trouble(0.737, "drain", 11), Trouble(0.0, "drain", 1)]
SKIPPED_FAULTS = {29: FailureKind.NO_MEMORY, 24: FailureKind.NO_MEMORY}
# A sequence that ends while its gateway reconnects is opened again, and then preempted: it has nothing to copy.
ENDED = GAVE_WAY | {"roles": ROLES[0], "delay_s": 0.02}
ENDED_ARRIVALS = [Arrival(1.5, 0, 1, 1), Arrival(0.688, 1, 1, 53)]
# A group that has left an engine of one node, its KV not yet copied out, was joined by a sequence of the other node.
TWO_NODES = GAVE_WAY | {"roles": ROLES[5], "contents": 2, "nodes": 2}
TWO_NODES_ARRIVALS = [
    Arrival(2.177, 0, 390, 56),
    Arrival(0.0, 3, 294, 24),
    Arrival(0.0, 1, 116, 32),
    Arrival(0.0, 1, 515, 35),
    Arrival(0.0, 3, 430, 6),
    Arrival(0.996, 1, 492, 40),
    Arrival(0.0, 3, 80, 1),
    Arrival(0.0, 0, 1, 21),
    Arrival(0.0, 3, 1, 1),
]
IN_PARTS, GATED = "slack in parts", "slack, gated"
# Weights that were wanted for a group which then left: nothing of others came in behind them, for ever.
LEFT = GAVE_WAY | {"roles": ROLES[0], "contents": 0, "delay_s": 0.02, "nodes": 1}
LEFT_ARRIVALS = [
    *(Arrival(0.0, 0, 1, length) for length in (1, 1, 1, 1, 1, 1, 1, 10, 7)),
    Arrival(0.0, 2, 1, 34),
    Arrival(1.0, 0, 1, 1),
    *(Arrival(0.0, 1, 1, length) for length in (18, 1)),
]
ADAPTERS = ("poet", "judge")
EXAMPLES = int(os.environ.get("EXAMPLES", examples(240)))

times = st.floats(0, 6, allow_nan=False).map(lambda x: round(x, 3))
arrivals = st.lists(
    st.builds(Arrival, times, st.integers(0, 3), st.integers(1, 700), st.integers(1, 60)), min_size=1, max_size=14
)
kinds = st.sampled_from(["cancel", "kill", "again", "attach", "gateway", "drain", "adapter"])
troubles = st.lists(st.builds(Trouble, times, kinds, st.integers(0, 13)), max_size=6)
faults = st.dictionaries(st.integers(0, 60), st.sampled_from(list(FailureKind)), max_size=4)


def paired(pool: dict) -> dict:
    """Where one engine prefills and one decodes, they are of one node: KV is handed off within a node."""
    return pool | {"nodes": 1} if len(pool["roles"]) == 2 else pool


shape = st.fixed_dictionaries(
    {
        "roles": st.sampled_from(ROLES),
        "slabs": st.sampled_from([112, 160, 230, 450]),
        "host_slabs": st.sampled_from([12, 60, 400]),
        "max_batch": st.sampled_from([1, 4, 16]),
        "shapes": st.sampled_from([1, 2]),
        "odd_blocks": st.booleans(),
        "contents": st.sampled_from([0, 1, 2]),
        "delay_s": st.sampled_from([0.0, 0.0005, 0.02]),
        "nodes": st.sampled_from([1, 2]),
        "pooling": st.sampled_from([0, 1]),
        "first_s": st.sampled_from([0.0, 0.05]),
        "ttfts": st.sampled_from([(2.0,), (2.0, 30.0), (8.0, 0.5)]),
    }
).map(paired)


def config(policy: str) -> SchedulerConfig:
    """`slack in parts`: prompts of more than some dozen tokens are computed in several turns."""
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    if policy == GATED:
        return SchedulerConfig(latency=latency, kv_gate=0.5)
    if policy != IN_PARTS:
        return SchedulerConfig(policy=policy_settings(policy), latency=latency)
    parts = SlackSettings(part_s=0.004, min_stay_s=0.05)
    return SchedulerConfig(policy=parts, latency=latency, prefill_chunk_tokens=48)


def play(
    policy: str, pool: dict, requests: list[Arrival], trouble: list[Trouble], fault: dict[int, FailureKind]
) -> World:
    laned = (cmd.Load, cmd.Unload, cmd.SwapOut, cmd.SwapIn, cmd.Adopt, cmd.Turn)
    count = 0

    def inject(send: cmd.Send) -> FailureKind | None:
        nonlocal count
        count += isinstance(send.body, laned)
        kind = fault.get(count)
        if isinstance(send.body, cmd.Unload) and kind is FailureKind.UNKNOWN:
            return None  # it would be a lie about what is resident
        return kind

    made: list[World] = []

    def observe(now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        if made:
            made[0].scheduler.check()

    world = small_world(**pool, config=config(policy), fault=inject, observe=observe)
    made.append(world)
    clients = ask(world, requests, pool.get("pooling", 0))
    for t in trouble:
        world.clock.at(t.at, lambda t=t: strike(world, clients, t))
    world.run(until=150.0)
    return world


def ask(world: World, requests: list[Arrival], pooling: int) -> list:
    """Those of the first `pooling` models, which generate nothing, end with their prompt. Most have an adapter."""
    lengths = [(1, 1) if r.model < pooling else (r.length, 1 << 20) for r in requests]
    asked = enumerate(zip(requests, lengths, strict=True))
    return [
        world.request(f"r{i}", ModelName(f"m{r.model}"), r.prompt, n, r.at, most, ("", *ADAPTERS)[i % 3])
        for i, (r, (n, most)) in asked
    ]


def strike(world: World, clients: list, trouble: Trouble) -> None:
    client = clients[trouble.who % len(clients)]
    instance = list(world.specs)[trouble.who % len(world.specs)]
    if trouble.kind == "cancel" and client.arrival <= world.clock.now:
        world.cancel(client)
    elif trouble.kind == "kill":
        world.kill(instance)
        world.clock.at(world.clock.now + 0.3, lambda: world.start(instance) if instance not in world.engines else None)
    elif trouble.kind == "again" and client.open and client.arrival <= world.clock.now:
        world.submit_again(client)
    elif trouble.kind == "attach" and instance in world.engines:
        world.attach_again(InstanceId(instance))
    elif trouble.kind == "adapter" and instance in world.engines:
        failed = {one: f"{one} cannot be read" for number, one in enumerate(ADAPTERS) if trouble.who & 1 << number}
        world.fail_adapters(InstanceId(instance), client.model, failed)
    elif trouble.kind == "drain":
        world.drain(instance)
        world.clock.at(world.clock.now + 2.0, lambda: strike(world, clients, Trouble(trouble.at, "kill", trouble.who)))
    elif trouble.kind == "gateway":
        for c in clients:
            if c.open and c.arrival <= world.clock.now:
                world.submit_again(c)


@pytest.mark.parametrize("policy", ["paper", "slack", "prism", IN_PARTS, GATED])
@settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(shape, arrivals, troubles, faults)
@example(GAVE_WAY, GAVE_WAY_ARRIVALS, [], {16: FailureKind.NO_MEMORY})
@example(SKIPPED, SKIPPED_ARRIVALS, SKIPPED_TROUBLE, SKIPPED_FAULTS)
@example(TWO_NODES, TWO_NODES_ARRIVALS, [], {})
@example(ENDED, ENDED_ARRIVALS, [Trouble(1.469, "gateway", 0)], {})
@example(LEFT, LEFT_ARRIVALS, [Trouble(2.0, "attach", 0)], {})
def test_every_request_ends_exactly_once_and_frees_everything(policy, pool, requests, trouble, fault):
    world = play(policy, pool, requests, trouble, fault)
    for client in world.clients.values():
        assert not client.open, f"{client} has no answer at {world.clock.now}"
    world.run(until=world.clock.now + 70, idle=False)
    world.scheduler.check()
    for client in world.clients.values():
        assert client.ends == 1, client
        assert len(client.times) == client.length or client.cancelled or client.rejected is not None
    assert not world.scheduler.snapshot(world.clock.now).sequences
    for engine in world.engines.values():
        assert not engine.state.sequences
        assert not any(engine.state.device.used.values())
        assert not any(engine.state.host.used.values())


@pytest.mark.parametrize("policy", ["paper", "slack", "prism", IN_PARTS, GATED])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(shape, arrivals, troubles, faults)
def test_the_same_events_give_the_same_commands(policy, pool, requests, trouble, fault):
    def record() -> list:
        seen: list = []
        world = small_world(
            **pool, config=config(policy), observe=lambda now, event, commands: seen.append((now, event, commands))
        )
        ask(world, requests, pool["pooling"])
        world.run(until=60.0)
        return seen

    assert record() == record()


@pytest.mark.parametrize("policy", ["paper", "slack", "prism"])
def test_a_report_in_flight_during_an_epoch_change_still_counts(policy):
    pool = {
        "roles": [Role.UNIFIED],
        "slabs": 112,
        "host_slabs": 60,
        "max_batch": 16,
        "shapes": 2,
        "odd_blocks": True,
        "delay_s": 0.02,
    }
    world = play(policy, pool, [Arrival(0.0, 0, 79, 26), Arrival(4.375, 0, 609, 2)], [Trouble(4.438, "gateway", 5)], {})
    assert not [client for client in world.clients.values() if client.open]
