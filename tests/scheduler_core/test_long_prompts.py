"""Long prompts under policy slack: computed in parts between which others run, and no token of them twice."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_core.test_slack import Watched
from small_world import examples, interpreted

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import ModelName, Role, Terms, Tier
from aegaeon_scheduler.core.policies import Proposal
from aegaeon_scheduler.core.policies.slack import prompts as prompts_module
from aegaeon_scheduler.core.policies.slack.order import URGENT_SHARE, due
from aegaeon_scheduler.core.policies.slack.turns import Turns
from aegaeon_scheduler.core.state import Instance

LONG = 4000
SHORT_PARTS = {"part_s": 0.03}


def parts(w: Watched, name: str) -> list[int]:
    """Tokens of a request's prompt that each turn was to compute."""
    turns = (sum(p.tokens for p in body.prefill if p.seq.request == name) for body in w.bodies(cmd.Turn))
    return [tokens for tokens in turns if tokens]


def test_a_long_prompt_is_computed_in_parts_and_no_token_of_it_twice():
    w = Watched([Role.UNIFIED], SHORT_PARTS, slabs=450)
    w.ask("talk", 0, 50, 200)
    w.ask("long", 1, LONG, 20, at=0.8)
    w.world.run(30)
    assert w.all_finished()
    assert sum(parts(w, "long")) == LONG
    assert len(parts(w, "long")) > 2
    assert w.world.attainment().token == 1.0


def test_its_own_models_requests_decode_between_the_parts_as_well_and_all_are_in_time():
    w = Watched([Role.UNIFIED], SHORT_PARTS | {"part_s": 0.02}, slabs=450)
    w.ask("talk", 0, 50, 200)
    for i in range(10):
        w.ask(f"long{i}", 0, LONG, 20, at=0.8)
    w.world.run(30)
    assert w.all_finished()
    assert all(sum(parts(w, f"long{i}")) == LONG for i in range(10))
    assert w.world.attainment().token == 1.0


def test_many_prompts_of_a_model_do_not_hold_up_what_it_decodes():
    w = Watched([Role.UNIFIED], slabs=3000)  # each takes less than one part, all together as long as the engine has
    w.ask("warm", 0, 50, 1)
    for i in range(15):
        w.ask(f"first{i}", 0, 3400, 12, at=1.0)
    for i in range(50):
        w.ask(f"next{i}", 0, 3400, 12, at=1.0 + 0.12 * i)
    w.world.run(60)
    assert w.all_finished()
    assert w.world.attainment().token > 0.99  # 0.25 where decode turns wait for all prompts


def test_an_interactive_prompt_waits_for_a_part_of_a_batch_prompt_alone():
    terms = {ModelName("m0"): Terms(Tier.INTERACTIVE), ModelName("m1"): Terms(Tier.BATCH)}
    w = Watched([Role.UNIFIED], SHORT_PARTS, slabs=450, terms=terms)
    w.ask("warm", 0, 50, 2)
    for i in range(5):
        w.ask(f"long{i}", 1, LONG, 5, at=0.5)
    hello = w.ask("hello", 0, 50, 5, at=0.9)
    w.world.run(30)
    assert w.all_finished()
    assert hello.times[0] < 4 * 0.03


def test_a_prompt_that_is_preempted_half_made_goes_on_where_it_was():
    """Room for one model: the prompt's KV leaves for the host and comes back, and no token is computed again."""
    terms = {ModelName("m0"): Terms(Tier.BATCH), ModelName("m1"): Terms(Tier.INTERACTIVE)}
    w = Watched([Role.UNIFIED], {"part_s": 0.01, "min_stay_s": 0.0}, slabs=150, terms=terms)
    w.ask("long", 0, LONG - 400, 20, at=0.1)
    w.ask("urgent", 1, 50, 40, at=0.32)
    w.world.run(60)
    assert w.all_finished()
    out, back = (
        next(i for i, (_, s) in enumerate(w.sends) if isinstance(s.body, kind)) for kind in (cmd.SwapOut, cmd.SwapIn)
    )
    computed = [sum(p.tokens for p in s.body.prefill) for _, s in w.sends[:out] if isinstance(s.body, cmd.Turn)]
    assert 0 < sum(computed) < LONG - 400
    assert out < back
    assert sum(parts(w, "long")) == LONG - 400


def test_a_half_made_prompt_is_adopted_by_another_engine():
    w = Watched([Role.UNIFIED, Role.UNIFIED], SHORT_PARTS, slabs=150)
    w.ask("long", 0, LONG - 400, 20, at=0.1)
    w.world.run(0.34)
    home = next(s.instance for _, s in w.sends if isinstance(s.body, cmd.Turn))
    assert 0 < sum(parts(w, "long")) < LONG - 400
    w.world.drain(home)
    w.world.run(30)
    assert w.all_finished()
    assert w.bodies(cmd.Adopt)
    assert sum(parts(w, "long")) == LONG - 400


def test_two_half_made_prompts_that_do_not_fit_together_both_end():
    w = Watched([Role.UNIFIED], SHORT_PARTS, slabs=160)
    for i in range(3):
        w.ask(f"long{i}", 0, LONG - 100, 20, at=0.1)
    w.world.run(60)
    assert w.all_finished()


def test_a_model_with_prompt_after_prompt_is_preempted_between_two_of_them():
    """Room for one model: its queue of prompts takes seconds, and there is one on the lane at any time."""
    terms = {ModelName("m0"): Terms(Tier.BATCH), ModelName("m1"): Terms(Tier.INTERACTIVE)}
    w = Watched([Role.UNIFIED], {}, slabs=250, host_slabs=4000, terms=terms)
    for i in range(200):
        w.ask(f"batch{i}", 0, 300, 5, at=0.1)
    urgent = w.ask("urgent", 1, 50, 40, at=0.5)
    w.world.run(100)
    assert w.all_finished()
    assert urgent.times[0] < 1.0


class Checked(Turns):
    """Turns that look at each part of a long prompt: what else could have run, and was due before?"""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.parts = 0
        self.passed_over: list[tuple[float, float]] = []

    def propose(self, inst: Instance, now: float, barred: Collection[Proposal]) -> Proposal | None:
        found = super().propose(inst, now, barred)
        if found is not None and found.tokens and not barred:
            self.parts += 1
            self._look(inst, found, now)
        return found

    def _look(self, inst: Instance, part: Proposal, now: float) -> None:
        limit = min(due(part.prefill[0]), now + URGENT_SHARE * part.model.config.slo.ttft_s)
        order = self._order(inst, now)
        for key, group in order:
            runs = group is not part.batch and group.ready() and key < limit
            if runs and (self._quantum(inst, group, now, now) or self._prompts.next(inst, group, order, now)):
                self.passed_over.append((key, limit))


def checked() -> tuple[Watched, Checked]:
    """One engine that computes parts of 0.03 s, and its turns."""
    w = Watched([Role.UNIFIED], SHORT_PARTS, slabs=900)
    policy = w.world.scheduler._policy
    policy._turns = turns = Checked(policy._pool, policy._settings, policy._table)
    return w, turns


REQUESTS = st.lists(
    st.tuples(st.floats(0.1, 4.0), st.integers(0, 2), st.sampled_from([50, 1500, LONG]), st.integers(5, 60)),
    min_size=4,
    max_size=30,
)


@interpreted
@settings(max_examples=examples(25), deadline=None)
@given(REQUESTS)
def test_a_part_of_a_long_prompt_runs_before_no_group_that_is_due_before_and_has_little_slack(requests):
    w, turns = checked()
    for i, (at, model, prompt, answer) in enumerate(requests):
        w.ask(f"r{i}", model, prompt, answer, at=at)
    w.world.run(120)
    assert w.all_finished()
    assert not turns.passed_over


@interpreted
def test_without_that_rule_what_its_group_decodes_makes_a_long_prompt_urgent(monkeypatch: pytest.MonkeyPatch):
    """The case above is not empty: the same look finds prompts that run before others which are due before."""
    monkeypatch.setattr(prompts_module, "URGENT_SHARE", 0.0)
    w, turns = checked()
    for i in range(8):
        w.ask(f"talk{i}", 0, 50, 60, at=0.1)
        w.ask(f"other{i}", 1, 50, 60, at=0.1)
        w.ask(f"long{i}", 0, LONG, 5, at=0.3 + 0.05 * i)
    w.world.run(60)
    assert turns.parts
    assert turns.passed_over
