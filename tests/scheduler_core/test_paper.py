"""Algorithms 1 and 2 as the scheduler carries them out, one rule per test, on modelled engines."""

from __future__ import annotations

from itertools import pairwise

import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.config import LatencyConstants, PaperSettings, SchedulerConfig
from aegaeon_scheduler.core.domain import InstanceId, ModelName, Role

LATENCY = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
PAPER = SchedulerConfig(policy=PaperSettings(), latency=LATENCY)


class Watched(small_world.Watched):
    """A small world under policy paper."""

    def __init__(self, roles: list[Role], **options) -> None:
        super().__init__(roles, **{"config": PAPER, **options})

    def prefills(self, instance: str) -> list[str]:
        turns = self.bodies(cmd.Turn, instance)
        return [t.prefill[0].seq.request for t in turns if t.prefill]

    def ask_all(self, *requests: tuple[str, int, int, int]) -> None:
        for request in requests:
            self.ask(*request)


def test_prompts_of_one_model_share_a_group_and_a_switch():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=160)
    w.ask_all(("x", 2, 50, 3), ("y", 3, 50, 3))  # the lane's current and next turn
    w.ask_all(("a", 0, 50, 3), ("b", 1, 50, 3), ("c", 0, 50, 3), ("d", 1, 50, 3))
    w.world.run(20)
    assert w.prefills("e0") == ["x", "y", "a", "c", "b", "d"]
    assert len(w.bodies(cmd.Load, "e0")) == 4


def test_a_group_takes_max_gpsize_requests_over_its_lifetime():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=160)
    w.ask_all(("x", 2, 50, 3), ("y", 3, 50, 3))
    w.ask_all(*[(f"a{i}", 0, 50, 2) for i in range(8)], ("b", 1, 50, 2), ("late", 0, 50, 2))
    w.world.run(20)
    order = w.prefills("e0")
    assert order.index("b") == 10
    assert order[-1] == "late"


def test_a_new_group_is_placed_where_pending_groups_end_first():
    w = Watched([Role.PREFILL, Role.PREFILL, Role.DECODE], slabs=250)
    w.ask_all(("a", 0, 50, 2), ("b", 1, 50, 2), ("c", 2, 50, 2), ("d", 3, 50, 2))  # both lanes are full
    w.ask_all(*[(f"long{i}", 0, 3000, 2) for i in range(6)], ("x", 1, 50, 2), ("y", 2, 50, 2))
    w.world.run(20)
    home = "e0" if "long0" in w.prefills("e0") else "e1"
    other = "e1" if home == "e0" else "e0"
    assert {"x", "y"} <= set(w.prefills(other))
    assert {f"long{i}" for i in range(6)} <= set(w.prefills(home))


def test_prefill_has_batch_size_one_and_long_prompts_come_in_chunks():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=250)
    w.ask_all(("a", 0, 1300, 2), ("b", 0, 20, 2))
    w.world.run(20)
    turns = [t for t in w.bodies(cmd.Turn, "e0") if t.prefill]
    assert [[p.tokens for p in t.prefill] for t in turns] == [[512, 512, 276], [20]]


def test_a_hand_off_is_swap_out_then_open_and_adopt_then_close():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=250)
    w.ask_all(("a", 0, 50, 5))
    w.world.run(20)
    kinds = [(s.instance, type(s.body).__name__) for _, s in w.sends if not isinstance(s.body, (cmd.Load, cmd.Turn))]
    assert kinds == [("e0", "Open"), ("e0", "SwapOut"), ("e1", "Open"), ("e1", "Adopt"), ("e0", "Close")]
    adopt = w.bodies(cmd.Adopt)[0]
    swap = next(s for _, s in w.sends if isinstance(s.body, cmd.SwapOut))
    assert (adopt.source, adopt.handle_of) == ("e0", swap.id)


def test_a_sequence_whose_decode_instance_is_lost_waits_on_its_source_until_it_is_back():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=250)
    w.ask_all(("a", 0, 50, 5))
    while not w.bodies(cmd.Turn):
        w.world.clock.step()
    w.world.kill(InstanceId("e1"))
    w.world.run(3)
    assert not w.bodies(cmd.Adopt)
    assert [s.state for s in w.world.scheduler.snapshot(3).sequences] == ["hand-off"]
    w.world.start(InstanceId("e1"))
    w.world.run(20)
    assert all(c.finished for c in w.world.clients.values())


def test_a_unified_instance_prefills_and_decodes_without_a_hand_off():
    w = Watched([Role.UNIFIED], slabs=450)
    w.ask_all(("a", 0, 50, 30), ("b", 1, 50, 30))
    w.world.run(20)
    assert not w.bodies(cmd.Adopt) + w.bodies(cmd.SwapOut) + w.bodies(cmd.Close)
    assert all(c.finished for c in w.world.clients.values())


def test_resident_models_alternate_without_loads():
    w = Watched([Role.UNIFIED], slabs=600)
    w.ask_all(*[(f"r{i}", i, 50, 100) for i in range(4)])
    w.world.run(30)
    assert len(w.bodies(cmd.Load)) == 4
    assert not w.bodies(cmd.Unload)
    assert w.world.attainment().token == 1.0


def test_the_next_model_is_loaded_while_the_current_one_decodes():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=250, models=3)
    w.ask_all(*[(f"r{i}", i, 50, 200) for i in range(3)])
    w.world.run(60)
    stalls = next(i for i in w.world.scheduler.snapshot(0).instances if i.instance == "e1")
    assert stalls.loads > 6
    turns = {s.id: s for _, s in w.sends if s.instance == "e1" and isinstance(s.body, cmd.Turn)}
    loads = [(t, s) for t, s in w.sends if s.instance == "e1" and isinstance(s.body, cmd.Load)]
    free_of_turns = [s for _, s in loads if not any(id in turns for id in s.after)]
    assert len(free_of_turns) == len(loads)  # no load waits for a turn to end


def test_where_one_model_fits_the_load_is_pipelined_behind_the_running_turn():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=130, models=2)
    w.ask_all(("a", 0, 50, 60), ("b", 1, 50, 60))
    w.world.run(60)
    turns = {s.id for _, s in w.sends if s.instance == "e1" and isinstance(s.body, cmd.Turn)}
    unloads = [s for _, s in w.sends if s.instance == "e1" and isinstance(s.body, cmd.Unload)]
    assert unloads
    assert any(set(s.after) & turns for s in unloads)
    assert all(c.finished for c in w.world.clients.values())


def test_no_runnable_batch_waits_longer_than_one_round():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=250)
    w.ask_all(*[(f"r{i}", i % 4, 50, 150) for i in range(8)])
    w.world.run(90)
    order = [t.model for t in w.bodies(cmd.Turn, "e1")]
    live_until = {m: max(i for i, x in enumerate(order) if x == m) for m in set(order)}
    for m in sorted(set(order)):
        at = [i for i, x in enumerate(order) if x == m]
        for a, b in pairwise(at):
            for other, last in live_until.items():
                if other != m and last > b:
                    assert order[a + 1 : b].count(other) <= 2, order


def test_a_new_sequence_joins_the_running_turn_of_its_batch():
    settings = PaperSettings(resident_quota_s=1.0)
    w = Watched([Role.PREFILL, Role.DECODE], slabs=250, config=SchedulerConfig(policy=settings))
    w.world.request("a", ModelName("m0"), 50, 150, 0.0)
    w.world.request("b", ModelName("m0"), 50, 20, 0.7)
    w.world.run(20)
    joins = [a for a in w.bodies(cmd.Amend, "e1") if a.join]
    assert [s.request for a in joins for s in a.join][:1] == ["b"]
    assert w.world.attainment().token == 1.0


def test_a_batch_never_grows_beyond_what_the_engine_takes():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=250, max_batch=3)
    w.ask_all(*[(f"r{i}", 0, 50, 20) for i in range(8)])
    w.world.run(30)
    assert max(len(t.decode) for t in w.bodies(cmd.Turn)) <= 3
    assert all(c.finished for c in w.world.clients.values())


def test_every_command_has_a_reason():
    w = Watched([Role.PREFILL, Role.DECODE], slabs=130)
    w.ask_all(*[(f"r{i}", i % 4, 50, 30) for i in range(6)])
    w.world.run(60)
    assert all(s.reason for _, s in w.sends)
