"""Structured output in requests: three dialects, one constraint, and a 400 that says where."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway.conftest import EOS, Pool

from aegaeon_proto.v1 import model_pb2 as pb

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
JSON = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
S, R, L = pb.CONSTRAINT_KIND_JSON_SCHEMA, pb.CONSTRAINT_KIND_REGEX, pb.CONSTRAINT_KIND_LARK

ACCEPTED: list[tuple[dict[str, Any], int, str]] = [
    ({"response_format": JSON}, S, json.dumps(SCHEMA)),
    ({"response_format": {"type": "json_object"}}, S, '{"type":"object"}'),
    ({"structured_outputs": {"json": SCHEMA, "regex": None}}, S, json.dumps(SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, S, json.dumps(SCHEMA)),
    ({"structured_outputs": {"json_object": True}}, S, '{"type":"object"}'),
    ({"structured_outputs": {"regex": "a+"}}, R, "a+"),
    ({"structured_outputs": {"choice": ["a", 'b"']}}, L, r'start: "a" | "b\""'),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, L, 'start: "a"'),
    ({"guided_json": SCHEMA}, S, json.dumps(SCHEMA)),
    ({"guided_regex": "a+", "guided_json": None, "guided_decoding_backend": "auto"}, R, "a+"),
    ({"guided_choice": ["a"]}, L, 'start: "a"'),
    ({"guided_grammar": 'start: "a"'}, L, 'start: "a"'),
]
NEUTRAL: list[dict[str, Any]] = [
    {"response_format": None, "structured_outputs": None, "guided_json": None},
    {"response_format": {"type": "text"}},
]
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    ({"response_format": {**JSON, "json_schema": {"schema": True}}}, "response_format.json_schema.schema", "object"),
    ({"guided_json": {"properties": {"a": {"not": {}}}}}, "guided_json", "#/properties/a"),
    ({"guided_json": "{"}, "guided_json", "no JSON"),
    ({"guided_json": {"type": "objekt"}}, "guided_json", "objekt"),
    ({"guided_json": {"$ref": "https://example.org/s"}}, "guided_json", "example.org"),
    ({"guided_regex": "(a"}, "guided_regex", "unclosed"),
    ({"guided_regex": "x" * 20_000}, "guided_regex", "bytes"),
    ({"guided_choice": []}, "guided_choice", "length"),
    ({"guided_grammar": "start: nowhere"}, "guided_grammar", "nowhere"),
    ({"guided_regex": "a", "response_format": JSON}, "guided_regex", "both"),
    ({"structured_outputs": {}}, "structured_outputs", "one of"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "both"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "null"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "null"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "EOS"),
]


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
@pytest.mark.parametrize(("said", "kind", "text"), ACCEPTED)
async def test_every_dialect_becomes_one_constraint(
    pool: Pool, endpoint: str, said: dict[str, Any], kind: int, text: str
) -> None:
    status, _, _ = await getattr(pool, endpoint)(**said)
    assert status == 200
    (submit,) = pool.peer.submits
    assert submit.sampling.constraint.kind == kind
    assert submit.sampling.constraint.text.strip().removeprefix("%llguidance {}").strip() == text
    assert list(submit.sampling.constraint.end_ids) == [EOS]


@pytest.mark.parametrize("said", NEUTRAL)
async def test_what_asks_for_nothing_is_no_constraint(pool: Pool, said: dict[str, Any]) -> None:
    status, _, _ = await pool.chat(**said)
    assert status == 200
    assert not pool.peer.submits[0].sampling.HasField("constraint")


@pytest.mark.parametrize(("said", "param", "why"), REFUSED)
async def test_what_cannot_be_compiled_is_refused_and_says_where(
    pool: Pool, said: dict[str, Any], param: str, why: str
) -> None:
    status, body, _ = await pool.chat(**said)
    assert status == 400
    assert body["error"]["param"] == param
    assert why in body["error"]["message"]
    assert not pool.peer.submits


async def test_a_schema_that_costs_too_much_is_refused_while_others_are_served(pool: Pool) -> None:
    anys = [{"anyOf": [{"required": [f"{i}.{j}"]} for j in range(40)]} for i in range(40)]
    status, body, _ = await pool.chat(guided_json={"allOf": anys})
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"
    status, _, _ = await pool.chat(guided_json=SCHEMA)
    assert status == 200


BOMBS = {
    "multipleOf": {"guided_json": {"type": "integer", "multipleOf": 99_999_999}},
    "multiples": {"guided_json": {"anyOf": [{"type": "integer", "multipleOf": 9000 + i} for i in range(20)]}},
    "within Lark": {"guided_grammar": 'start: %json {"type":"integer","multipleOf":99999999}'},
}


@pytest.mark.parametrize("name", BOMBS)
async def test_what_the_librarys_own_limits_do_not_bound_is_ended_and_refused(pool: Pool, name: str) -> None:
    """In a process of its own: the worker that it was sent to answers the next request, without a new one."""
    await pool.chat(guided_json=SCHEMA)
    status, body, _ = await pool.chat(**BOMBS[name])
    assert status == 400, body
    assert "takes more than 0.5 s of CPU time or 96 MiB of memory" in body["error"]["message"]
    status, _, _ = await pool.chat(guided_json=SCHEMA)
    assert status == 200


async def test_engines_receive_what_was_proved_and_whose_it_is(pool: Pool) -> None:
    await pool.chat(guided_json=SCHEMA)
    constraint = pool.peer.submits[-1].sampling.constraint
    library, version, digest = constraint.proof.split()
    assert library == "llguidance"
    assert version[0].isdigit()
    assert len(digest) == 64
    assert len(constraint.share) == 8


async def test_a_schema_of_a_thousand_optional_properties_is_taken(pool: Pool) -> None:
    properties = {f"property_{i}": {"type": "string", "title": "P"} for i in range(1000)}
    status, body, _ = await pool.chat(guided_json={"type": "object", "properties": properties})
    assert status == 200, body
