"""The KV gate: new sessions wait while KV fills more than a share of its room on every engine that may take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.cache_admission import Spares
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, policy_settings
from aegaeon_scheduler.core.domain import InstanceId, ModelName, Phase, RejectCode, Role
from aegaeon_simulator.pool.world import World

LATENCY = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
CONFIG = SchedulerConfig(latency=LATENCY, refine=False)
GATE = 0.6
SLABS = 180  # room for 80 slabs of KV beside the weights: 8 blocks of 16 tokens each


class Watch:
    """Counts sequences that were moved out, and notes the largest share of KV at which a prompt began."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.most = 0.0
        self.moved = 0

    def __call__(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        bodies = [command.body for command in commands if isinstance(command, cmd.Send)]
        self.moved += sum(isinstance(body, cmd.SwapOut) for body in bodies)
        if self.world is not None and any(isinstance(body, cmd.Turn) and body.prefill for body in bodies):
            self.most = max(self.most, self.world.scheduler.kv_used())


def watched(config: SchedulerConfig, roles: Sequence[Role] = (Role.UNIFIED,)) -> tuple[World, Watch]:
    """Requests of one model, of which an engine holds five or so until they end."""
    watch = Watch()
    world = small_world(roles, models=1, slabs=SLABS, config=config, observe=watch, ttfts=(4.0,))
    watch.world = world
    for number in range(30):
        world.request(f"r{number}", ModelName("m0"), 160, 800, at=0.2 * number)
    world.run(until=400)
    return world, watch


def long_answers(config: SchedulerConfig, roles: Sequence[Role] = (Role.UNIFIED,)) -> World:
    """See watched."""
    return watched(config, roles)[0]


@pytest.mark.parametrize("policy", ["slack", "paper", "prism"])
def test_sessions_wait_while_kv_is_above_the_gate_and_all_are_answered(policy: str) -> None:
    config = replace(CONFIG, policy=policy_settings(policy), hold_s=300.0, kv_gate=GATE)
    world = long_answers(config)
    assert all(client.finished for client in world.clients.values())


def test_no_prompt_begins_above_the_gate_and_fewer_sequences_are_moved_out() -> None:
    """Without it memory fills with prompts, and what decodes has no room to grow."""
    (_, gated), (_, without) = (watched(replace(CONFIG, hold_s=300.0, kv_gate=gate)) for gate in (GATE, 0.0))
    assert gated.most < 0.85  # a prompt that passed may wait for its turn meanwhile
    assert without.most > 0.95
    assert gated.moved < 0.6 * without.moved


def test_with_roles_the_engines_that_decode_count_too() -> None:
    roles = (Role.PREFILL, Role.DECODE)
    (_, gated), (_, without) = (watched(replace(CONFIG, hold_s=300.0, kv_gate=gate), roles) for gate in (GATE, 0.0))
    assert gated.most < 0.85
    assert without.most > 0.9


def test_who_waits_beyond_hold_gets_503_with_the_reason_and_when_to_retry() -> None:
    world = long_answers(replace(CONFIG, hold_s=5.0, kv_gate=GATE))
    refused = [client.rejected for client in world.clients.values() if client.rejected]
    assert refused
    assert all(reject.code is RejectCode.OVERLOADED and reject.retry_after_s > 0 for reject in refused)
    assert any(
        "each engine that may take m0 is above 60% of its room for KV, for" in reject.reason for reject in refused
    )
    assert all(client.finished or client.rejected for client in world.clients.values())


def test_sessions_pass_in_the_order_of_their_arrival() -> None:
    """Policy paper computes prompts of a model as they come."""
    config = replace(CONFIG, policy=policy_settings("paper"), hold_s=300.0, kv_gate=GATE)
    clients = long_answers(config).clients.values()
    begun = [client.arrival + client.times[0] for client in clients]
    assert begun == sorted(begun)


def test_another_engine_below_the_gate_takes_them() -> None:
    config = replace(CONFIG, hold_s=300.0, kv_gate=GATE)
    alone, beside = long_answers(config), long_answers(config, (Role.UNIFIED, Role.UNIFIED))
    last = [max(client.times[0] for client in world.clients.values()) for world in (alone, beside)]
    assert last[1] < 0.6 * last[0]


def test_an_engine_without_kv_takes_a_session_that_exceeds_the_gate_alone() -> None:
    world = small_world([Role.UNIFIED], models=1, slabs=SLABS, config=replace(CONFIG, kv_gate=0.01))
    client = world.request("r", ModelName("m0"), 2000, 20, at=0.0)
    world.run(until=60)
    assert client.finished


def test_what_a_client_reads_already_goes_on_after_its_engine_died() -> None:
    """Its KV is lost and the other engine is above the gate: its reader waits for no gate."""
    config = replace(CONFIG, hold_s=300.0, kv_gate=0.05)
    world = small_world([Role.UNIFIED] * 2, models=1, slabs=SLABS, config=config, ttfts=(4.0,))
    clients = [world.request(f"r{number}", ModelName("m0"), 160, 400, at=0.5 * number) for number in range(2)]
    world.run(until=1.5)
    assert all(client.times for client in clients)
    world.clock.at(1.6, lambda: world.kill(InstanceId("e0")))
    world.run(until=3.5)
    assert all(len(client.times) > 20 for client in clients)
    world.run(until=60)
    assert all(client.finished for client in clients)


@pytest.mark.parametrize("phase", [Phase.CACHED, Phase.FAILED])
def test_what_passed_and_waits_for_an_engine_is_not_held_again(phase: Phase) -> None:
    """Where an engine has a model anew, or it fails there, all that waits for it is looked at again."""
    config = replace(CONFIG, hold_s=300.0, kv_gate=0.05)
    world = small_world([Role.UNIFIED] * 2, models=6, slabs=140, config=config, ttfts=(4.0,))
    clients = [world.request(f"r{number}", ModelName(f"m{number % 6}"), 64, 300, 0.05 * number) for number in range(60)]
    pool, step = world.scheduler._pool, 0
    passed = None
    while passed is None:  # a model of which a request that passed waits, with the gate closed by now
        step += 1
        world.run(until=0.02 * step)
        if all(Spares(pool).of(inst) <= 0 for inst in pool.instances.values()):
            passed = next((m for m in pool.models.values() if m.waiting.keys() - pool.gated.keys()), None)
    if phase is Phase.CACHED:
        world.feed(ev.ModelReported(InstanceId("e1"), passed.name, Phase.FETCHING, passed.footprint))
    world.feed(ev.ModelReported(InstanceId("e1"), passed.name, phase, passed.footprint, "its files changed"))
    for more in range(step, step + 200):
        world.run(until=0.02 * more)
        world.scheduler.check()
    world.run(until=200)
    assert all(client.finished for client in clients)


def test_embeddings_wait_for_no_engine_that_decodes() -> None:
    config = replace(CONFIG, hold_s=10.0, kv_gate=0.3)
    roles = (Role.PREFILL, Role.DECODE)
    world = small_world(roles, models=2, slabs=250, host_slabs=2000, config=config, ttfts=(4.0,), pooling=1)
    for number in range(12):
        world.request(f"chat{number}", ModelName("m1"), 160, 1500, at=0.05 * number)
    texts = [world.request(f"text{number}", ModelName("m0"), 160, 1, at=6 + 0.2 * number) for number in range(5)]
    world.run(until=8)
    assert world.scheduler.kv_used() > 0.3
    world.run(until=60)
    assert all(client.times and client.times[0] < 1.0 for client in texts)


def test_with_admission_that_promises_nothing_waits_at_the_gate() -> None:
    world = long_answers(replace(CONFIG, hold_s=300.0, kv_gate=0.2, admission="feasible"))
    refused = [client.rejected.reason for client in world.clients.values() if client.rejected]
    assert any(
        "each engine that may take m0 is above 20% of its room for KV; try again" in reason for reason in refused
    )
