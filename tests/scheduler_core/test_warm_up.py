"""First steps of a model on an engine, done ahead: in turns of no sequence, while nothing else is to be done there."""

from __future__ import annotations

import pytest
from scheduler_core.test_slack import Watched
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import FailureKind, ModelName, Role
from aegaeon_scheduler.core.policies.slack import policy, weights

FIRST_S = 0.4
WARM_SET = {"warm": True}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of the warm set begin ten times a second."""
    for module in (policy, weights):
        monkeypatch.setattr(module, "WARM_GAP_S", 0.1)


def warm_ups(w: Watched) -> list[tuple[float, str]]:
    return [(at, s.body.model) for at, s in w.sends if isinstance(s.body, cmd.Turn) and s.body.warm_up]


def firsts(w: Watched) -> float:
    """Seconds of first steps on all engines, ahead or not."""
    return sum(engine.state.usage.first_s for engine in w.world.engines.values())


def begin_s(slabs: int = 450) -> float:
    """When an engine that has computed a prompt of m0 alone, as request `short`, begins to warm it up."""
    w = Watched([Role.UNIFIED], slabs=slabs, first_s=FIRST_S)
    w.ask("short", 0, 50, 1)
    w.world.run(3.0, idle=False)
    ((began, _),) = warm_ups(w)
    return began


def gaps(client) -> list[float]:
    return [after - before for before, after in zip(client.times, client.times[1:], strict=False)]


def test_an_engine_without_work_warms_up_what_it_has_loaded_ahead():
    w = Watched([Role.UNIFIED], WARM_SET, slabs=450, models=4, first_s=FIRST_S)
    w.ask("other", 0, 50, 5)
    later = [w.ask(f"r{i}", i, 50, 20, at=20.0 + i) for i in (1, 2, 3)]
    w.world.run(40)
    assert w.all_finished()
    assert sorted(model for _, model in warm_ups(w)) == ["m1", "m2", "m3"]
    assert all(at < 20.0 for at, _ in warm_ups(w))
    assert max(max(gaps(client)) for client in later) < 0.05  # a step takes 10 ms


def test_without_it_the_first_reader_waits():
    """So that the test above can fail: a model that is loaded for its first request is not warmed up before."""
    w = Watched([Role.UNIFIED], slabs=450, first_s=FIRST_S)
    client = w.ask("r", 0, 50, 20)
    w.world.run(20)
    assert not warm_ups(w)
    assert max(gaps(client)) > FIRST_S
    assert firsts(w) == FIRST_S


def test_a_model_that_has_only_prefilled_is_warmed_up_once():
    w = Watched([Role.UNIFIED], slabs=450, first_s=FIRST_S)
    w.ask("short", 0, 50, 1)
    second = w.ask("second", 0, 50, 20, at=5.0)
    w.world.run(20)
    assert [model for _, model in warm_ups(w)] == ["m0"]
    assert max(gaps(second)) < 0.05
    assert firsts(w) == FIRST_S


def test_while_any_sequence_is_on_an_engine_nothing_is_warmed_up_there():
    """What is loaded ahead beside it is warmed up afterwards, but for what it waited for itself."""
    w = Watched([Role.UNIFIED], WARM_SET, slabs=450, models=3, first_s=FIRST_S)
    long = w.ask("long", 0, 50, 600)
    w.world.run(60, idle=False)
    assert {model for _, model in warm_ups(w)} == {"m1", "m2"}
    assert all(at >= long.arrival + long.times[-1] for at, _ in warm_ups(w))


def test_a_prompt_that_comes_meanwhile_is_next():
    began = begin_s()
    w = Watched([Role.UNIFIED], slabs=450, first_s=FIRST_S)
    w.ask("short", 0, 50, 1)
    early, later = (w.ask(f"at{at}", 0, 50, 1, at=began + at) for at in (0.01, 0.02))
    w.world.run(20)
    assert [model for _, model in warm_ups(w)] == ["m0"]
    assert early.times[0] < later.times[0] + 0.01 < FIRST_S + 0.05


def test_the_engine_of_a_pool_that_pools_only_has_nothing_to_warm_up():
    w = Watched([Role.UNIFIED], slabs=450, pooling=4, first_s=FIRST_S)
    w.ask("text", 0, 50, 1)
    w.world.run(20)
    assert w.all_finished()
    assert not warm_ups(w)


def test_an_engine_that_only_prefills_has_no_decodes_to_warm_up():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=450, first_s=FIRST_S)
    w.ask("short", 0, 50, 1)
    w.world.run(20, idle=False)
    assert w.all_finished()
    assert not warm_ups(w)


def test_one_that_fails_is_not_repeated_and_the_model_serves():
    def fails(send: cmd.Send) -> FailureKind | None:
        return FailureKind.ENGINE if isinstance(send.body, cmd.Turn) and send.body.warm_up else None

    w = Watched([Role.UNIFIED], slabs=450, first_s=FIRST_S, fault=fails)
    w.ask("short", 0, 50, 1)
    second = w.ask("second", 0, 50, 20, at=5.0)
    w.world.run(20)
    assert len(warm_ups(w)) == 1
    assert second.finished
    assert max(gaps(second)) > FIRST_S


def test_an_engine_that_dies_of_it_does_not_die_of_it_again():
    began = begin_s()
    w = Watched([Role.UNIFIED], slabs=450, first_s=FIRST_S)
    engine = next(iter(w.world.specs))
    w.ask("short", 0, 50, 1)
    w.world.clock.at(began + 0.1, lambda: w.world.kill(engine))
    w.world.clock.at(began + 1.0, lambda: w.world.start(engine))
    again, other = (w.ask(f"m{model}", model, 50, 1, at=5.0 + model) for model in (0, 1))
    w.world.run(20, idle=False)
    assert again.finished
    assert other.finished
    assert [model for _, model in warm_ups(w)] == ["m0", "m1"]


def test_an_engine_whose_stream_breaks_meanwhile_has_not_died_of_it():
    w = Watched([Role.UNIFIED, Role.UNIFIED], slabs=450, first_s=FIRST_S)
    first, second = w.world.specs
    w.ask("short", 0, 50, 1)
    w.world.clock.at(0.4, lambda: w.world.attach_again(first))
    w.world.clock.at(2.0, lambda: w.world.kill(first))
    w.ask("elsewhere", 0, 50, 1, at=3.0)
    w.world.run(20, idle=False)
    turns = [s for _, s in w.sends if isinstance(s.body, cmd.Turn) and s.body.warm_up]
    assert [turn.instance for turn in turns] == [first, second]
    assert warm_ups(w)[0][0] < 0.4 < warm_ups(w)[0][0] + FIRST_S


def test_an_engine_that_attaches_again_is_not_warmed_up_anew():
    w = Watched([Role.UNIFIED], slabs=450, first_s=FIRST_S)
    w.ask("short", 0, 50, 1)
    w.world.clock.at(3.0, lambda: w.world.attach_again(next(iter(w.world.specs))))
    w.world.run(20, idle=False)
    assert len(warm_ups(w)) == 1


def test_where_memory_is_needed_the_unload_waits_for_the_end_of_the_turn():
    began = begin_s(slabs=130)
    w = Watched([Role.UNIFIED], slabs=130, first_s=FIRST_S)
    w.ask("short", 0, 50, 1)
    other = w.ask("other", 1, 50, 5, at=began + 0.05)
    w.world.run(20)
    (turn,) = (s.id for _, s in w.sends if isinstance(s.body, cmd.Turn) and s.body.warm_up and s.body.model == "m0")
    unload = next(s for _, s in w.sends if isinstance(s.body, cmd.Unload) and s.body.model == ModelName("m0"))
    assert turn in unload.after
    assert other.finished


def test_what_is_warmed_up_counts_as_used_no_later_for_that():
    """Else a model without requests would outlive the one that was served last."""
    w = Watched([Role.UNIFIED], {"name": "paper"}, slabs=250, first_s=FIRST_S)
    w.ask("prompt", 0, 50, 1)
    w.ask("served last", 1, 50, 50)
    w.ask("other", 2, 50, 5, at=20.0)
    w.world.run(40)
    assert [model for _, model in warm_ups(w)] == ["m0"]
    assert [unload.model for unload in w.bodies(cmd.Unload)] == ["m0"]


def test_only_the_engine_is_busy_with_it_not_the_model():
    """What a model's tokens take, and its share of the engines, are seconds of its requests."""
    w = Watched([Role.UNIFIED], slabs=450, first_s=FIRST_S)
    w.ask("short", 0, 50, 1)
    w.world.run(20, idle=False)
    view = w.world.scheduler.snapshot(20.0)
    assert view.instances[0].ahead_s == view.instances[0].first_s == FIRST_S
    assert view.instances[0].busy_s > FIRST_S > view.models[0].busy_s > 0.0


def test_what_is_left_to_warm_up_as_an_engine_attaches_again_is_warmed_up():
    w = Watched([Role.UNIFIED], WARM_SET, slabs=450, models=4, first_s=FIRST_S)
    w.ask("other", 0, 50, 5)
    w.world.clock.at(1.1, lambda: w.world.attach_again(next(iter(w.world.specs))))
    w.world.run(20, idle=False)
    assert all(at < 1.1 for at, s in w.sends if isinstance(s.body, cmd.Load))
    assert [model for _, model in warm_ups(w)] == ["m2", "m3", "m1"]


def test_sequences_that_an_engine_holds_as_it_attaches_go_on_first():
    """Of its models the one that is reported first is cold, and the other one has the sequence."""
    w = Watched([Role.UNIFIED], WARM_SET, slabs=450, models=2, first_s=FIRST_S)
    held = w.ask("held", 1, 50, 300)
    w.world.clock.at(1.1, lambda: w.world.attach_again(next(iter(w.world.specs))))
    w.world.run(20, idle=False)
    assert held.finished
    ((at, model),) = warm_ups(w)
    assert model == "m0"
    assert at > held.arrival + held.times[-1]


def test_a_request_that_waits_for_a_place_is_waited_for():
    """Both models come at once, and the second one is placed by a pass after the first one's load."""
    w = Watched([Role.UNIFIED], slabs=250, first_s=FIRST_S)
    w.ask("short", 0, 50, 1)
    other = w.ask("other", 1, 50, 5)
    w.world.run(20, idle=False)
    assert [model for _, model in warm_ups(w)] == ["m0"]
    assert warm_ups(w)[0][0] > other.arrival + other.times[-1]


def test_the_price_of_a_place_is_of_its_first_decode_not_of_one_with_more_rows():
    """A model whose passes have one number of rows runs the other kinds in no time."""
    turns: list[cmd.Send] = []

    def see(now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        turns.extend(c for c in commands if isinstance(c, cmd.Send) and isinstance(c.body, cmd.Turn))

    world = small_world([Role.UNIFIED], first_s=FIRST_S, observe=see)
    world.request("r", ModelName("m0"), 50, 100, 0.1)
    world.run(1.0)
    estimate = world.scheduler._pool.estimates.of(ModelName("m0"), "modelled")
    assert estimate.first_s == FIRST_S
    engine, memory = turns[-1].instance, world.engines[turns[-1].instance].state.memory()
    world.feed(ev.TurnProgress(engine, turns[-1].id, (), 1, 0.0, 0, 0.0, 0.0, 20, 9, memory, end=False, first_s=0.004))
    assert estimate.first_s == FIRST_S


def test_a_first_decode_has_one_price_done_ahead_or_not():
    world = small_world([Role.UNIFIED, Role.UNIFIED], first_s=FIRST_S)
    world.request("prompt", ModelName("m0"), 50, 1, 0.1)
    world.run(2.0, idle=False)
    world.kill(next(iter(world.specs)))
    world.request("elsewhere", ModelName("m0"), 50, 20, 3.0)
    world.run(6.0, idle=False)
    assert [engine.state.usage.first_s for engine in world.engines.values()] == [FIRST_S]
    assert world.scheduler._pool.estimates.of(ModelName("m0"), "modelled").first_s == FIRST_S
