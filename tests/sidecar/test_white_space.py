"""White space within structured output is bounded alike, whatever version of llguidance an environment has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from aegaeon_proto.constraints import JSON_OBJECT
from aegaeon_proto.engine.sampling import Constraint, ConstraintKind, SamplingParams
from aegaeon_sidecar.sampling import Masker, SamplerState
from aegaeon_sidecar.sampling.grammars import Grammars, Vocabulary
from aegaeon_sidecar.sampling.white_space import MAX_WHITE_SPACE

EOS, SIZE = 2, 400
SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]})
TRIED = 3 * MAX_WHITE_SPACE

Longest = Callable[..., int]


@pytest.fixture(scope="module")
def longest(tiny_models: dict[str, Path]) -> Iterator[Longest]:
    """How much white space may be chosen in a row behind an output, token by token."""
    grammars, masker = Grammars(), Masker()
    vocabulary = Vocabulary(tiny_models["llama"], SIZE)
    tokenizer = Tokenizer.from_file(str(tiny_models["llama"] / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        encoded: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return encoded

    def run(output: str, space: str, kind: ConstraintKind = ConstraintKind.JSON_SCHEMA, text: str = SCHEMA) -> int:
        constraint = Constraint(kind, text, (EOS,))
        guide = grammars.guide(vocabulary, constraint, lambda: None)
        sampler = SamplerState(SamplingParams(constraint=constraint), output=ids(output), guide=guide)
        (token,) = ids(space)
        for count in range(TRIED):
            masks = masker.masks([sampler], SIZE)
            assert masks is not None
            assert not masks.refused
            assert np.any(masks.allowed[0]), "something can always be chosen"
            if not masks.allowed[0][token]:
                return count
            sampler.accept(token)
        return TRIED

    yield run
    grammars.stop()


OUTPUTS = ("{", '{"a"', '{"a":', '{"a":"x \\\\"', '{"a":"x \\" "', '{"a":"","b":[1,')


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("space", [" ", "\n"])
def test_no_run_between_parts_is_longer_than_the_bound(longest: Longest, output: str, space: str) -> None:
    assert longest(output, space) == MAX_WHITE_SPACE


def test_what_was_written_before_counts(longest: Longest) -> None:
    assert longest("{" + " \n" * 10, " ") == MAX_WHITE_SPACE - 20


def test_any_json_object_is_bounded_as_well(longest: Longest) -> None:
    assert longest("{", " ", text=JSON_OBJECT) == MAX_WHITE_SPACE


def test_strings_and_other_grammars_may_have_as_much_as_they_like(longest: Longest) -> None:
    assert longest('{"a":"x \\"', " ") == TRIED
    assert longest("a", " ", ConstraintKind.REGEX, "a *b") == TRIED
