"""Models that generate nothing, beside others: their prompts are due by TTFT, and nothing of them stays."""

from __future__ import annotations

from math import inf

import pytest
from scheduler_core.test_slack import Watched
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import (
    Footprint,
    GatewayId,
    KvShape,
    ModelConfig,
    ModelName,
    RejectCode,
    Role,
    SeqId,
    Slo,
)
from aegaeon_scheduler.core.events import Submitted
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import Kind, Member, Standing
from aegaeon_scheduler.core.state import Model, Sequence
from aegaeon_simulator.engine.spec import together_s
from aegaeon_simulator.errors import SettingsError
from aegaeon_simulator.pool.client import Client


def embed(w: Watched, name: str, tokens: int, at: float = 0.1, model: int = 0) -> Client:
    return w.world.request(name, ModelName(f"m{model}"), tokens, 1, at, max_tokens=1)


def test_prompts_run_between_the_turns_of_chats_on_the_same_engine() -> None:
    w = Watched([Role.UNIFIED], slabs=450, pooling=1)
    chats = [w.ask(f"chat{i}", 1 + i % 2, 50, 200) for i in range(4)]
    texts = [embed(w, f"text{i}", 300, at=1.0 + 0.05 * i) for i in range(40)]
    w.world.run(60)
    assert w.all_finished()
    assert w.world.attainment().token == 1.0
    assert all(len(text.times) == 1 for text in texts)
    turns = w.bodies(cmd.Turn)
    assert not [turn for turn in turns if turn.model == "m0" and (turn.decode or turn.steps)]
    during = [turn.model for turn in turns[: len(turns) - 1]]
    assert {"m0", "m1", "m2"} <= set(during)
    assert all(len(chat.times) == 200 for chat in chats)
    w.world.scheduler.check()
    [instance] = w.world.engines.values()
    assert not instance.state.sequences


@pytest.mark.parametrize(("pooled", "max_batch", "most"), [(0, 16, 5), (4096, 16, 16), (65536, 1000, 36)])
def test_prompts_that_wait_are_computed_together(pooled: int, max_batch: int, most: int) -> None:
    """A turn is one pass: no more tokens, prompts and seconds (a tenth) than it may have, and each prompt once."""
    w = Watched([Role.UNIFIED], slabs=450, pooling=1, max_batch=max_batch, max_pooled_tokens=pooled)
    w.ask("chat", 1, 50, 100)
    texts = [embed(w, f"text{i}", 100, at=1.0) for i in range(200)]
    w.world.run(60)
    assert w.all_finished()
    turns = [turn for turn in w.bodies(cmd.Turn) if turn.model == "m0"]
    computed = [part.seq.request for turn in turns for part in turn.prefill]
    assert sorted(computed) == sorted(f"text{i}" for i in range(200))
    assert max(len(turn.prefill) for turn in turns) == most
    [instance] = w.world.engines.values()
    pass_s = together_s(instance.state.models[ModelName("m0")].latency, [100] * most)
    assert max(text.times[0] for text in texts) < 1.5 * (200 / most) * pass_s + 0.5


def test_a_workload_that_asks_an_embedder_for_tokens_is_refused_before_it_runs() -> None:
    world = small_world([Role.UNIFIED], slabs=450, pooling=1)
    with pytest.raises(SettingsError, match="m0 generates nothing, but wrong asks it for 2 tokens; give 1"):
        world.request("wrong", ModelName("m0"), 300, 2, at=0.1)
    right = world.request("right", ModelName("m0"), 300, 1, at=0.1)
    chat = world.request("chat", ModelName("m1"), 300, 2, at=0.1)
    world.run(60)
    assert [len(client.times) for client in (right, chat)] == [1, 2]


def test_a_prompt_that_is_computed_drives_the_order_no_more() -> None:
    """Its next token would be due soon, if there were one."""
    model = Model(ModelConfig(ModelName("m"), Slo(2.0, 0.1)), 0)
    model.measured(Footprint(1, 1, KvShape("s"), 1, 16, 4096, task="embed"))
    group = Group(model, Kind.WHOLE, 1, Standing())
    seq = Sequence(Submitted(SeqId("r", 0), 1, GatewayId("g"), model.name, 5.0, 300, 0, 1), model, 1)
    seq.row = Member(seq)
    group.members[seq.id] = group.prompts[seq.id] = seq
    assert group.urgency(5.5, 1.0) == (7.0, 1)
    del group.prompts[seq.id]  # it is in a turn
    assert group.urgency(5.5, 1.0) == (inf, 1)


@pytest.mark.parametrize("policy", ["slack", "paper"])
def test_prompts_are_not_handed_off(policy: str) -> None:
    """A prefill engine alone answers, also where no decode engine has the model."""
    w = Watched([Role.PREFILL, Role.DECODE], {"name": policy}, slabs=450, pooling=1)
    for i in range(10):
        embed(w, f"text{i}", 300, at=0.1 * i)
    w.world.run(20)
    assert w.all_finished()
    assert not w.bodies(cmd.SwapOut)
    assert not w.bodies(cmd.Adopt)
    assert {s.instance for _, s in w.sends if isinstance(s.body, cmd.Turn)} == {"e0"}


@pytest.mark.parametrize("roles", [[Role.UNIFIED], [Role.PREFILL, Role.DECODE]])
def test_admission_judges_prompts_alone(roles: list[Role]) -> None:
    """Some thousand prompts a second would be late; as many as an engine computes are taken, and are in time."""
    w = Watched(roles, slabs=450, pooling=1, admission="feasible")
    calm = [embed(w, f"calm{i}", 100, at=0.1 + 0.05 * i) for i in range(100)]
    w.world.run(20)
    assert all(client.finished for client in calm)
    flood = [embed(w, f"flood{i}", 2000, at=20 + 0.001 * i) for i in range(3000)]
    w.world.run(100)
    refused = [client for client in flood if client.rejected is not None]
    assert refused
    assert {client.rejected.code for client in refused if client.rejected} == {RejectCode.OVERLOADED}
    taken = [client for client in flood if client.rejected is None]
    assert taken
    assert sum(client.times[0] <= 2.0 for client in taken) > 0.9 * len(taken)


@pytest.mark.parametrize(("tokens", "taken"), [(4096, True), (4097, False)])
def test_a_prompt_may_have_all_of_the_models_length(tokens: int, taken: bool) -> None:
    w = Watched([Role.UNIFIED], slabs=450, pooling=1)
    warm = embed(w, "warm", 10)
    client = embed(w, "text", tokens, at=1.0)
    w.world.run(20)
    assert warm.finished
    assert bool(client.finished) == taken
    assert taken or (client.rejected is not None and client.rejected.code is RejectCode.TOO_LONG)
