"""Sequences that kill engines, or make turns fail: they are found and given up, and their company gets its answers."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scheduler_core.test_any_order import Arrival, arrivals, ask, config, shape
from small_world import examples, small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import FailureKind, Finish, InstanceId, ModelName, RejectCode, Role, SeqId
from aegaeon_simulator.engine.engine import Engine
from aegaeon_simulator.pool.world import Client, World

EXAMPLES = int(os.environ.get("EXAMPLES", examples(100)))
DEATHS = 3  # twice with company, once alone
CLEARED = 16  # tokens
LANE = 2  # turns that are out: the second may have begun before it hears that the first one failed
ROOMY = {"slabs": 450, "host_slabs": 400, "max_batch": 16}
GIVEN_UP = (RejectCode.ENGINE, RejectCode.INVALID)


class Poisoned:
    """A world in which some sequences end whatever runs them: `way` is kill (the engine dies) or fail (the turn does).

    `at_decode`: their prefill goes well, so that each loss brings them one token further.
    """

    def __init__(self, policy: str, pool: dict, requests: list[Arrival], poison: set[int], way: str, at_decode: bool):
        self.poison = {SeqId(f"r{i}", 0) for i in poison}
        self.way, self.at_decode = way, at_decode
        self.failures = 0
        self.alone: list[bool] = []
        self.world: World | None = None
        self.world = small_world(**pool, config=config(policy), fault=self._fault, observe=self._observe)
        self.clients = ask(self.world, requests, pool.get("pooling", 0))
        self.world.run(until=300.0)
        self.world.run(until=self.world.clock.now + 70, idle=False)

    def _observe(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        if self.world is not None:
            self.world.scheduler.check()

    def _fault(self, send: cmd.Send) -> FailureKind | None:
        turn = send.body
        if not isinstance(turn, cmd.Turn):
            return None
        members = set(turn.decode) if self.at_decode else {*turn.decode, *(part.seq for part in turn.prefill)}
        if not members & self.poison:
            return None
        self.failures += 1
        self.alone.append(len(members) == 1)
        if self.way == "fail":
            return FailureKind.ENGINE
        assert self.world is not None
        world, instance = self.world, send.instance
        world.clock.at(world.clock.now, lambda: self._die(world, instance))
        return None

    def _die(self, world: World, instance: InstanceId) -> None:
        world.kill(instance)
        world.clock.at(world.clock.now + 0.3, lambda: world.start(instance) if instance not in world.engines else None)

    @property
    def innocent(self) -> list[Client]:
        return [client for client in self.clients if client.seq not in self.poison]

    @property
    def guilty(self) -> list[Client]:
        return [client for client in self.clients if client.seq in self.poison]


def check(played: Poisoned) -> None:
    for client in played.clients:
        assert not client.open, f"{client} has no answer"
        assert client.ends == 1, client
    for client in played.innocent:
        assert client.rejected is None or client.rejected.code not in GIVEN_UP, client
        assert client.rejected is not None or len(client.times) == client.length
    for client in played.guilty:
        whole = played.at_decode and len(client.times) == client.length  # those that join a turn do it no harm
        assert client.rejected is not None or whole, client
    cleared = sum(1 + client.length // CLEARED for client in played.guilty)
    assert played.failures <= DEATHS * LANE * cleared
    assert not any(s for s in played.world.scheduler.snapshot(300.0).models if s.suspects)


@pytest.mark.parametrize("policy", ["paper", "slack"])
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.generate],
)
@given(shape, arrivals, st.sets(st.integers(0, 13), max_size=4), st.sampled_from(["kill", "fail"]), st.booleans())
def test_sequences_that_crash_engines_are_failed_and_no_others(policy, pool, requests, poison, way, at_decode):
    check(Poisoned(policy, pool, requests, {i for i in poison if i < len(requests)}, way, at_decode))


@pytest.mark.parametrize("policy", ["paper", "slack"])
@pytest.mark.parametrize("at_decode", [False, True])
@pytest.mark.parametrize("way", ["kill", "fail"])
def test_four_poison_requests_in_one_batch_cost_its_other_members_no_answer(policy, at_decode, way):
    pool = ROOMY | {"roles": [Role.UNIFIED]}
    requests = [Arrival(0.01 * i, 0, 30, 40) for i in range(12)]
    played = Poisoned(policy, pool, requests, {2, 5, 7, 11}, way, at_decode)
    check(played)
    assert all(client.rejected.code is RejectCode.ENGINE for client in played.guilty)
    assert "the last one alone" in played.guilty[0].rejected.reason
    views = played.world.scheduler.snapshot(0.0).models
    assert {view.model: view.poisoned for view in views if view.poisoned} == {"m0": 4}


@pytest.mark.parametrize("policy", ["paper", "slack"])
def test_progress_resets_the_failure_count_of_a_sequence(policy):
    """Six engines die one after the other under a sequence that makes progress under each: it is never given up."""
    world = small_world(**ROOMY, roles=[Role.UNIFIED], config=config(policy))
    client = world.request("r", ModelName("m0"), 30, 600, 0.0)
    for _ in range(6):
        done = len(client.times)
        while len(client.times) < done + 60:
            world.clock.step()
        world.kill(InstanceId("e0"))
        world.clock.at(world.clock.now + 0.3, lambda: world.start(InstanceId("e0")))
    world.run(until=100.0)
    assert client.rejected is None
    assert len(client.times) == 600


def test_weights_whose_unload_was_skipped_behind_failed_turns_are_unloaded_later():
    """Four turns in a row fail, each with an unload of the same weights behind it that never runs."""
    pool = ROOMY | {"roles": [Role.UNIFIED], "slabs": 160}
    requests = [Arrival(0.7, 1, 1, 1), Arrival(0.0, 0, 1, 21), Arrival(0.0, 1, 1, 1), Arrival(0.0, 0, 1, 1)]
    check(Poisoned("paper", pool, requests, {0, 2, 3}, "fail", at_decode=False))


def end_with_error(engine: Engine, seq: SeqId, kind: FailureKind) -> None:
    """As a sidecar does: the sequence is gone, its turn goes on, and the next report says why."""
    turn, q = engine.compute.turn, engine.state.sequences[seq]
    turn.decode.remove(seq)
    engine.state.drop(q)
    reason = "logit_bias: because of it"
    turn.changed[seq] = ev.Progress(seq, q.epoch, q.output, q.kv, False, Finish.ERROR, kind, reason)


def test_a_sequence_failed_by_the_engine_ends_with_its_reason_and_the_turn_continues():
    world = small_world(**ROOMY, roles=[Role.UNIFIED])
    kinds = {FailureKind.INVALID: RejectCode.INVALID, FailureKind.NOT_FINITE: RejectCode.ENGINE}
    for number, (kind, code) in enumerate(kinds.items()):
        bad, good = (world.request(f"{name}{number}", ModelName("m0"), 30, 200, world.clock.now) for name in "bg")
        engine = world.engines[InstanceId("e0")]
        while engine.compute.turn is None or bad.seq not in engine.compute.turn.decode:
            world.clock.step()
        end_with_error(engine, bad.seq, kind)
        world.run(until=world.clock.now + 60)
        assert bad.rejected is not None
        assert (bad.rejected.code, bad.rejected.reason) == (code, "logit_bias: because of it")
        assert len(good.times) == 200


def test_turns_without_their_model_count_against_no_sequence():
    """No sequence ran in them: their members are lost, a bounded number of times in a row, but run batched."""
    suspects = []

    def observe(now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        if isinstance(event, ev.CommandFailed):
            suspects.append(sum(view.suspects for view in world.scheduler.snapshot(now).models))

    failures = iter([FailureKind.UNKNOWN] * 3)

    def fault(send: cmd.Send) -> FailureKind | None:
        return next(failures, None) if isinstance(send.body, cmd.Turn) else None

    world = small_world(**ROOMY, roles=[Role.UNIFIED], fault=fault, observe=observe)
    client = world.request("r", ModelName("m0"), 30, 50, 0.0)
    world.run(until=60.0)
    assert (len(suspects), sum(suspects)) == (3, 0)
    assert len(client.times) == 50


def test_an_open_that_names_an_impossible_parameter_is_answered_once_and_not_tried_again():
    opens = 0

    def observe(now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        nonlocal opens
        for send in commands:
            if isinstance(send, cmd.Send) and isinstance(send.body, cmd.Open):
                opens += 1
                failed = ev.CommandFailed(send.instance, send.id, FailureKind.INVALID, "top_p: 7 is too much")
                world.clock.at(world.clock.now, lambda failed=failed: world.feed(failed))

    world = small_world(**ROOMY, roles=[Role.UNIFIED], observe=observe)
    client = world.request("r", ModelName("m0"), 30, 200, 0.0)
    world.run(until=10.0)
    assert opens == 1
    assert (client.rejected.code, client.rejected.reason) == (RejectCode.INVALID, "top_p: 7 is too much")
