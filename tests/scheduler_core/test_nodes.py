"""Engines of several nodes that prefill or decode: KV is handed off within a node."""

from __future__ import annotations

from types import SimpleNamespace as Some

import pytest
from scheduler_core.test_slack import Watched
from small_world import interpreted

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import InstanceId, Place, Role
from aegaeon_scheduler.core.policies.slack.residency import node_of

# Of two nodes in turn: e0 and e2 are of one, e1 and e3 of the other.
PAIRS = [Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE]


@pytest.fixture(params=["slack", "paper"])
def pairs(request) -> Watched:
    return Watched(PAIRS, {"name": request.param}, nodes=2, slabs=450)


def test_what_is_prefilled_on_a_node_is_decoded_there(pairs):
    for i in range(24):
        pairs.ask(f"r{i}", i % 4, 300, 60, at=0.1 + i / 50)
    pairs.world.run(60)

    assert pairs.all_finished()
    sources = {(send.instance, send.body.source) for _, send in pairs.sends if isinstance(send.body, cmd.Adopt)}
    assert sources == {("e2", "e0"), ("e3", "e1")}


def test_a_node_without_decode_engine_prefills_nothing_and_its_sequences_move_elsewhere(pairs):
    for i in range(24):
        pairs.ask(f"r{i}", i % 4, 300, 60, at=0.1 + i / 50)
    pairs.world.clock.at(0.5, lambda: pairs.world.kill(InstanceId("e2")))
    pairs.world.run(60)

    assert pairs.all_finished()
    late = {send.instance for at, send in pairs.sends if at > 0.6 and isinstance(send.body, cmd.Turn)}
    assert late == {"e1", "e3"}


def test_a_node_prefills_again_once_it_can_decode_again(pairs):
    pairs.world.clock.at(0.1, lambda: pairs.world.kill(InstanceId("e2")))
    pairs.world.clock.at(0.5, lambda: pairs.world.start(InstanceId("e2")))
    for i in range(24):
        pairs.ask(f"r{i}", i % 4, 300, 60, at=1.0 + i / 50)
    pairs.world.run(60)

    assert pairs.all_finished()
    assert {send.instance for at, send in pairs.sends if at > 1 and isinstance(send.body, cmd.Turn)} == {
        *("e0", "e1", "e2", "e3")
    }


@interpreted
@pytest.mark.parametrize(
    ("place", "source", "node"),
    [(Place.NONE, None, None), (Place.HOST, None, "a"), (Place.DEVICE, None, "a"), (Place.NONE, "e0", "a")],
    ids=["no KV yet", "in host memory", "about to leave a device", "handed over, not adopted yet"],
)
def test_a_waiting_group_is_bound_to_the_node_of_its_kv_even_while_a_hand_off_is_revoked(place, source, node):
    member = Some(home=Some(node="a"), place=place, source=source, copy=None)
    assert node_of({"r": member}) == node


def test_what_is_handed_off_does_not_join_prompts_that_wait_for_an_engine_of_another_node():
    """Before the engine that only prefills is there, prompts wait for the unified one, which is of the other node."""
    w = Watched([Role.PREFILL, Role.UNIFIED, Role.DECODE], nodes=2, slabs=112, host_slabs=12, delay_s=0.02)
    early = [(1.145, 3, 1, 41), (0.01, 1, 147, 19), (4.764, 1, 317, 24), (0.0, 3, 700, 18)]
    late = [(4.0, 0, 137, 45), (4.859, 0, 357, 1), (0.18, 1, 236, 22), (0.0, 2, 60, 41)]
    for number, (at, model, prompt, length) in enumerate([*early, *late]):
        w.ask(f"r{number}", model, prompt, length, at=at)
    w.world.run(60)
    assert w.all_finished()
