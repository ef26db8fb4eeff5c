"""The rules of policy `prism` as the scheduler carries them out, one per test, on modelled engines."""

from __future__ import annotations

from itertools import pairwise

import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.config import LatencyConstants, PrismSettings, SchedulerConfig
from aegaeon_scheduler.core.domain import Role
from aegaeon_simulator.pool.client import Client

LATENCY = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)


class Watched(small_world.Watched):
    """A small world of unified engines under policy prism."""

    def __init__(self, engines: int = 1, settings: PrismSettings | None = None, **options) -> None:
        config = SchedulerConfig(policy=settings or PrismSettings(), latency=LATENCY, hold_s=1e9)
        super().__init__([Role.UNIFIED] * engines, config=config, **options)

    def of(self, kind: type, instance: str | None = None) -> list:
        return [(t, s.body) for t, s in self.sends if isinstance(s.body, kind) and instance in (None, s.instance)]

    def prefills(self) -> list[str]:
        return [turn.prefill[0].seq.request for _, turn in self.of(cmd.Turn) if turn.prefill]

    def ask(self, name: str, model: int, prompt: int = 50, length: int = 3, at: float = 0.1) -> Client:
        return super().ask(name, model, prompt, length, at)

    def run(self, seconds: float) -> None:
        self.world.run(seconds)
        assert self.all_finished()

    def homes(self) -> dict[str, str]:
        return {s.body.model: s.instance for _, s in self.sends if isinstance(s.body, cmd.Load)}


def test_models_go_where_kv_pressure_is_least():
    w = Watched(engines=2, slabs=450)
    w.ask("busy", 0, 700, 200)
    w.ask("other", 1, 50, 5, at=0.2)
    w.ask("third", 2, 50, 5, at=0.3)
    w.run(30)
    homes = w.homes()
    assert homes["m1"] != homes["m0"]
    assert homes["m2"] == homes["m1"]  # two of little growth press less than the busy one


def test_a_model_stays_on_its_instance_while_that_has_its_weights():
    w = Watched(engines=2, slabs=450)
    for i in range(6):
        w.ask(f"r{i}", 0, at=0.1 + 3 * i)
    w.run(40)
    assert len(w.of(cmd.Load)) == 1


def test_a_model_in_use_is_not_unloaded_for_another_one():
    w = Watched(slabs=250)
    w.ask("a", 0, 50, 100)
    w.ask("b", 1, 50, 100)
    w.ask("c", 2, 50, 5, at=0.5)
    w.run(30)
    ends = {name.request: client.arrival + client.times[-1] for name, client in w.world.clients.items()}
    (at, unload), *more = w.of(cmd.Unload)
    assert not more
    assert unload.model in ("m0", "m1")
    assert at >= min(ends["a"], ends["b"])
    loads = [body.model for _, body in w.of(cmd.Load)]
    assert loads == ["m0", "m1", "m2"]


def test_of_idle_models_the_one_is_evicted_that_was_idle_for_most_of_its_objective():
    w = Watched(slabs=350)
    for i, at in enumerate((0.1, 4.0, 8.0)):
        w.ask(f"r{i}", i, at=at)
    w.ask("again", 0, at=12.0)
    w.ask("new", 3, at=16.0)
    w.run(30)
    assert [body.model for _, body in w.of(cmd.Unload)] == ["m1"]


def test_of_prompts_that_cannot_all_be_in_time_the_longest_stand_back():
    w = Watched(slabs=2000, host_slabs=4000, settings=PrismSettings(prompts_in_a_row=100))
    w.ask("warm0", 0)
    w.ask("warm1", 1)
    for i in range(30):  # 3.3 s of prompts that are due within 2 s
        w.ask(f"long{i}", 0, 4000, 1, at=5.0)
    for i in range(4):
        w.ask(f"short{i}", 1, 20, 1, at=5.5)
    w.run(30)
    first = {name.request: client.times[0] for name, client in w.world.clients.items()}
    assert all(first[f"short{i}"] < 2.0 for i in range(4))
    assert sum(first[f"long{i}"] < 2.0 for i in range(30)) >= 15


def test_models_of_an_instance_decode_in_turn():
    w = Watched(slabs=600)
    for i in range(4):
        w.ask(f"r{i}", i, 50, 100)
    w.run(30)
    order = [turn.model for at, turn in w.of(cmd.Turn) if turn.decode and 1.5 < at < 3.0]
    assert len(set(order)) == 4
    assert all(len(set(order[i : i + 4])) == 4 for i in range(len(order) - 4))


def test_a_long_prompt_lets_others_decode_between_its_parts():
    settings = PrismSettings(prompts_in_a_row=1, part_tokens=512)
    w = Watched(slabs=900, settings=settings)
    w.ask("a", 0, 50, 300)
    w.ask("long", 1, 3000, 2, at=2.0)
    w.run(30)
    turns = [turn for _, turn in w.of(cmd.Turn)]
    parts = [i for i, turn in enumerate(turns) if turn.prefill and turn.model == "m1"]
    assert len(parts) == 6
    assert all(any(turn.decode for turn in turns[a:b]) for a, b in pairwise(parts))


def test_a_model_moves_away_from_much_more_kv_pressure():
    w = Watched(engines=2, slabs=450, settings=PrismSettings(interval_s=1.0))
    w.ask("first", 0, 50, 400)
    w.ask("one", 1, 50, 3, at=0.5)
    for i in range(40):  # m1 comes to be as busy as m0, on the engine where a third one grows
        w.ask(f"a{i}", 1, 300, 30, at=1.0 + 0.4 * i)
        w.ask(f"b{i}", 2, 300, 30, at=1.0 + 0.4 * i)
    w.run(60)
    places = {s.instance for _, s in w.sends if isinstance(s.body, cmd.Load) and s.body.model in ("m1", "m2")}
    assert places == {"e0", "e1"}
    moved = [s for _, s in w.sends if isinstance(s.body, cmd.Load) and "less KV pressure" in s.reason]
    assert len(moved) <= 3


def test_of_what_waits_late_requests_come_last():
    w = Watched(slabs=130)
    w.ask("runs", 0, 50, 300)
    w.ask("late", 1, 50, 2, at=0.2)
    w.ask("in time", 2, 50, 2, at=3.0)
    w.run(30)
    assert w.prefills() == ["runs", "in time", "late"]
