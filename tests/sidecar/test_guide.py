"""Guides and masks: what a constrained sequence may choose next, wherever and however its guide was made."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from aegaeon_proto.engine.sampling import Constraint, ConstraintKind, SamplingParams
from aegaeon_sidecar.sampling import Guide, Masker, SamplerState
from aegaeon_sidecar.sampling.grammars import Grammars, Vocabulary

EOS, SIZE = 2, 400  # the model has more logits than its tokenizer has tokens
YES_OR_NO = Constraint(ConstraintKind.REGEX, "(yes|no)+", (EOS,))


class World:
    """A tokenizer's folder, and what compiles for it."""

    def __init__(self, directory: Path) -> None:
        self.vocabulary = Vocabulary(directory, SIZE)
        self.grammars = Grammars()
        self.masker = Masker()
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def guide(self, constraint: Constraint = YES_OR_NO) -> Guide:
        return self.grammars.guide(self.vocabulary, constraint, lambda: None)

    def sampler(self, output: str = "", params: SamplingParams | None = None) -> SamplerState:
        params = params or SamplingParams(stop_ids=(EOS,), constraint=YES_OR_NO)
        assert params.constraint is not None
        return SamplerState(params, output=self.ids(output), guide=self.guide(params.constraint))

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def allowed(self, *samplers: SamplerState | None) -> list[set[int]]:
        masks = self.masker.masks(samplers, SIZE)
        assert masks is not None
        assert not masks.refused
        return [set(np.flatnonzero(row).tolist()) for row in masks.allowed]


@pytest.fixture(scope="module")
def world(tiny_models: dict[str, Path]) -> Iterator[World]:
    made = World(tiny_models["llama"])
    yield made
    made.grammars.stop()


def test_only_what_continues_the_output_is_allowed_and_the_end_where_it_may_end(world: World) -> None:
    first, middle, complete = world.allowed(world.sampler(), world.sampler("y"), world.sampler("yes"))
    assert {world.tokenizer.id_to_token(token)[0] for token in first} == {"y", "n"}
    assert {world.tokenizer.id_to_token(token)[0] for token in middle} == {"e"}
    assert complete == first | {EOS}


def test_rows_without_constraint_may_choose_anything(world: World) -> None:
    free, none, _ = world.allowed(SamplerState(), None, world.sampler())
    assert free == none == set(range(SIZE))
    assert world.masker.masks([SamplerState(), None], SIZE) is None


def test_a_guide_made_of_the_output_stands_where_the_one_does_that_saw_every_token(world: World) -> None:
    followed = world.sampler()
    for count, token in enumerate(world.ids("yesnoyes")):
        world.allowed(followed)
        followed.accept(token)
        rebuilt = SamplerState(followed.params, output=world.ids("yesnoyes")[: count + 1], guide=world.guide())
        assert world.allowed(rebuilt) == world.allowed(followed)


def test_no_stop_id_is_allowed_before_min_tokens_unless_the_constraint_allows_nothing_else(world: World) -> None:
    params = SamplingParams(stop_ids=(EOS,), min_tokens=50, constraint=YES_OR_NO)
    assert EOS not in world.allowed(world.sampler("yes", params))[0]
    once = replace(params, constraint=replace(YES_OR_NO, text="yes|no"))
    assert world.allowed(world.sampler("yes", once)) == [{EOS}]


def test_every_end_id_ends(world: World) -> None:
    params = SamplingParams(stop_ids=(EOS, 5), constraint=replace(YES_OR_NO, text="yes", end_ids=(EOS, 5)))
    assert world.allowed(world.sampler("yes", params)) == [{EOS, 5}]


@pytest.mark.parametrize(
    ("constraint", "why"),
    [
        (replace(YES_OR_NO, text="("), "unclosed group"),
        (replace(YES_OR_NO, kind=None), "kind"),
        (Constraint(ConstraintKind.JSON_SCHEMA, "[", (EOS,)), "EOF"),
        (Constraint(ConstraintKind.JSON_SCHEMA, json.dumps({"not": {}}), (EOS,)), "not"),
        (replace(YES_OR_NO, end_ids=(SIZE,)), "token"),
    ],
)
def test_a_constraint_that_cannot_be_compiled_refuses_its_own_row(
    world: World, constraint: Constraint, why: str
) -> None:
    bad = world.sampler("", SamplingParams(constraint=constraint))
    masks = world.masker.masks([world.sampler(), bad], SIZE)
    assert masks is not None
    assert list(masks.refused) == [1]
    assert why in masks.refused[1].reason
    assert masks.allowed[1].all()
    assert not masks.allowed[0].all()


def test_an_output_that_the_constraint_does_not_allow_refuses_its_row(world: World) -> None:
    masks = world.masker.masks([world.sampler("maybe")], SIZE)
    assert masks is not None
    assert list(masks.refused) == [0]


def test_a_model_without_tokenizer_refuses_constraints(world: World, tmp_path: Path) -> None:
    guide = world.grammars.guide(Vocabulary(tmp_path, SIZE), YES_OR_NO, lambda: None)
    masks = Masker().masks([SamplerState(guide=guide)], SIZE)
    assert masks is not None
    assert "tokenizer.json" in masks.refused[0].reason


def test_a_tokenizer_file_that_makes_no_sense_refuses_constraints(world: World, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 7}, "merges": []}}')
    guide = world.grammars.guide(Vocabulary(tmp_path, 3), YES_OR_NO, lambda: None)
    masks = Masker().masks([SamplerState(guide=guide)], 3)
    assert masks is not None
    assert masks.refused


def test_a_tokenizer_that_changed_is_read_again(world: World, tmp_path: Path) -> None:
    source = (world.vocabulary.directory / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(source)
    copy = Vocabulary(tmp_path, SIZE)
    before = SamplerState(guide=world.grammars.guide(copy, YES_OR_NO, lambda: None))
    assert world.masker.masks([before], SIZE) is not None
    (tmp_path / "tokenizer.json").write_text("{}")
    after = world.masker.masks([SamplerState(guide=world.grammars.guide(copy, YES_OR_NO, lambda: None))], SIZE)
    assert after is not None
    assert after.refused


def test_the_tokenizers_of_many_models_are_not_kept_by_their_grammars(tmp_path: Path) -> None:
    """Each takes tens of MB, and every model's clients ask for a schema now and then."""
    grammars, before = Grammars(), _children()
    for number in range(7):
        folder = tmp_path / f"model-{number}"
        folder.mkdir()
        _write_large_tokenizer(folder / "tokenizer.json")
        guide = grammars.guide(Vocabulary(folder, _LARGE), replace(YES_OR_NO, text="[0-9]+"), lambda: None)
        assert guide.client().alive
        del guide
    grammars.guide(Vocabulary(tmp_path, _LARGE), YES_OR_NO, lambda: None)
    assert eventually(lambda: len(_children() - before) <= 4)
    grammars.stop()
    assert eventually(lambda: not _children() - before)


_LARGE = 30_000


def _write_large_tokenizer(path: Path) -> None:
    vocab = {f"{number}x": number for number in range(_LARGE)}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "ignore_merges": True}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "decoder": decoder, "model": model}))


def _children() -> set[int]:
    """The processes that this one has started and that live."""
    lines = (path.read_text().split() for path in Path("/proc/self/task").glob("*/children"))
    return {int(pid) for line in lines for pid in line}


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.02)
    return held


def test_the_ceilings_of_logits_on_the_host_say_the_same_as_what_is_allowed(world: World) -> None:
    masks = Masker(on_host=True).masks([world.sampler(), None, world.sampler("yes")], SIZE)
    assert masks is not None
    assert masks.ceilings is not None
    logits = np.random.default_rng(1).normal(size=masks.allowed.shape).astype(np.float32)
    logits[0, :3] = np.inf, -np.inf, np.nan
    picked = np.minimum(logits, masks.ceilings)
    expected = np.where(masks.allowed, logits, -np.inf)
    known = ~np.isnan(logits)
    assert (picked[known] == expected[known]).all()
    assert np.isnan(picked[~known]).all(), "what is not a number ends its row, allowed or not"
