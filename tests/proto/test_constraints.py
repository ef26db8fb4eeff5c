"""Constraints as gateways and sidecars read them: every text has one meaning, and none is taken that is too costly."""

from __future__ import annotations

import json
import time
from typing import Any

import llguidance
import pytest
from byte_tokenizer import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from aegaeon_proto.constraints import MAX_TEXT_BYTES, fault, lark_of, lark_of_choice, matcher_of
from aegaeon_proto.engine.sampling import ConstraintKind

SCHEMA, REGEX, LARK = ConstraintKind.JSON_SCHEMA, ConstraintKind.REGEX, ConstraintKind.LARK
TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=12)
LEAVES = (
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["string", "object", "array", "#/$defs/a", "["])
)
KEYWORDS = st.sampled_from(
    ["type", "properties", "items", "anyOf", "allOf", "oneOf", "$ref", "$defs", "enum", "const", "pattern", "maxLength",
     "minItems", "required", "additionalProperties", "not", "a", "x-guidance", "lenient", "minimum"]
)  # fmt: skip
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4), max_leaves=12
)


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return byte_tokenizer()


def holds(tokenizer: LLTokenizer, kind: ConstraintKind, text: str, output: str) -> bool:
    """Whether the whole output is what the constraint describes."""
    matcher = matcher_of(kind, text, tokenizer)
    data = list(output.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@settings(max_examples=60, deadline=None)
@given(choices=st.lists(TEXTS, min_size=1, max_size=4), other=TEXTS)
def test_a_choice_is_exactly_one_of_its_texts(choices: list[str], other: str, tokenizer: LLTokenizer) -> None:
    grammar = lark_of_choice(choices)
    assert not fault(LARK, grammar, tokenizer)
    assert all(holds(tokenizer, LARK, grammar, choice) for choice in choices)
    assert holds(tokenizer, LARK, grammar, other) == (other in choices)


@settings(max_examples=150, deadline=None)
@given(schema=ANYTHING)
def test_every_json_value_is_a_schema_that_compiles_or_has_a_reason(schema: Any, tokenizer: LLTokenizer) -> None:
    begin = time.process_time()
    assert isinstance(fault(SCHEMA, json.dumps(schema), tokenizer), str)
    assert time.process_time() - begin < 2


@settings(max_examples=150, deadline=None)
@given(text=st.text('ab()[]{}|*+?.^$\\dws,19-:="\n /%', max_size=40))
def test_every_text_is_an_expression_and_a_grammar_or_has_a_reason(text: str, tokenizer: LLTokenizer) -> None:
    assert isinstance(fault(REGEX, text, tokenizer), str)
    refusal = "none"
    try:
        assert isinstance(fault(LARK, lark_of(text), tokenizer), str)
    except ValueError as error:
        refusal = str(error)
    assert refusal


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {}},
        {"type": "object", "x-guidance": {"lenient": True}, "not": {}},
        {"uniqueItems": True},
        {"type": "string", "format": "no such format"},
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        {"$ref": "#/$defs/missing"},
    ],
)
def test_a_schema_is_refused_whose_outputs_might_not_validate(schema: dict[str, Any], tokenizer: LLTokenizer) -> None:
    assert fault(SCHEMA, json.dumps(schema), tokenizer)


def test_white_space_may_be_between_json_tokens(tokenizer: LLTokenizer) -> None:
    assert holds(tokenizer, SCHEMA, '{"type":"object"}', '{\n    "a": [1, 2]\n}')


@pytest.mark.parametrize("kind", list(ConstraintKind))
def test_a_text_that_is_too_long_is_refused(kind: ConstraintKind, tokenizer: LLTokenizer) -> None:
    assert "bytes" in fault(kind, "x" * (MAX_TEXT_BYTES[kind] + 1), tokenizer)


def test_what_other_servers_call_a_grammar_is_read_as_one(tokenizer: LLTokenizer) -> None:
    assert holds(tokenizer, LARK, lark_of('root ::= "yes" | "no" root'), "nonoyes")
    assert holds(tokenizer, LARK, lark_of('start: "yes" | "no" start'), "nonoyes")


BOMBS = {
    "repeats": (REGEX, "((((((a{1,500}){1,500}){1,500}){1,500}){1,500}){1,500}){1,500}"),
    "look-back": (REGEX, "(a|b)*a(a|b){1,900}(c|d)*c(c|d){1,900}"),
    "long": (REGEX, "x" * MAX_TEXT_BYTES[REGEX]),
    "deep": (SCHEMA, '{"items":' * 5000 + "{}" + "}" * 5000),
    "deep expression": (REGEX, "(" * 8000 + ")" * 8000),
    "product": (
        SCHEMA,
        json.dumps({"allOf": [{"anyOf": [{"required": [f"{i}.{j}"]} for j in range(30)]} for i in range(30)]}),
    ),
    "doubling": (
        SCHEMA,
        json.dumps(
            {
                "$ref": "#/$defs/0",
                "$defs": {str(i): {"allOf": 2 * [{"$ref": f"#/$defs/{i + 1}"}]} for i in range(99)} | {"99": {}},
            }
        ),
    ),
    "wide": (SCHEMA, json.dumps({"properties": {f"p{i}": {"pattern": f"^.{{{i}}}[a-z]*{i}$"} for i in range(900)}})),
    "counts": (SCHEMA, '{"type":"array","minItems":999999999,"items":{"type":"string","minLength":999999999}}'),
    "ambiguous": (LARK, "start: a\n" + "\n".join(f"{c}: {c} {c} | b | c | d | " for c in "abcd")),
}


@pytest.mark.skipif(
    llguidance.__version__ < "1.9", reason="its own limits let some of them take 20 GB: processes bound it"
)
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_or_costs_little_with_every_token(name: str, tokenizer: LLTokenizer) -> None:
    kind, text = BOMBS[name]
    begin = time.process_time()
    if not fault(kind, text, tokenizer):
        matcher = matcher_of(kind, text, tokenizer)
        for _ in range(8):
            bits = matcher.compute_bitmask()
            if matcher.is_error() or matcher.is_stopped():
                break
            if (byte := next((i for i in range(256) if bits[i // 8] >> i % 8 & 1), None)) is None:
                break
            matcher.consume_token(byte)
    assert time.process_time() - begin < 2
