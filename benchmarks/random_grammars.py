"""Constraints made to cost much, from a seed: each keyword with extreme values, nested, in each dialect."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from aegaeon_proto.constraints import lark_of_choice
from aegaeon_proto.engine.sampling import ConstraintKind

Schema = dict[str, Any]
_NUMBERS = (0, 1, 2, 7, 97, 9973, 65_536, 1_000_003, 99_999_999, 2**31, 2**53, 1e-9, 0.01, 1e300, -1)
_COUNTS = (0, 1, 2, 30, 1000, 65_536, 10**6, 10**9)
_PATTERNS = (
    "^(a+)+$",
    "^.*a.{20}$",
    "^[ab]*a[ab]{16}$",
    "^(a|aa)*b{1,1000}$",
    "^\\w{500}$",
    "^(x?){200}x{200}$",
    "^~(a*)$",
)
_ATOMS = ("a", "[ab]", ".", "\\w", "\\p{L}", "(a|aa)", "(?i:k)", "x?", "é", "[^\\s]")
_REPEATS = ("", "*", "+", "?", "{2,900}", "{1000}", "{1,100000}", "*?")


def constraint(chance: Random) -> tuple[ConstraintKind, str]:
    """One of the four dialects, or a required tool's schema."""
    match chance.randrange(6):
        case 0:
            return ConstraintKind.REGEX, expression(chance, 4)
        case 1:
            return ConstraintKind.LARK, grammar(chance)
        case 2:
            count = chance.choice((1, 50, 1000))
            return ConstraintKind.LARK, lark_of_choice([expression(chance, 1) for _ in range(count)])
        case 3:
            call = {"properties": {"name": {"const": "f"}, "arguments": schema(chance, 4)}, "required": ["name"]}
            return ConstraintKind.JSON_SCHEMA, json.dumps({"type": "array", "items": {"type": "object", **call}})
        case _:
            return ConstraintKind.JSON_SCHEMA, json.dumps(schema(chance, 5))


def schema(chance: Random, depth: int) -> Schema:
    """A number, a string, or more of these in an object, a list or a choice."""
    kinds = (_number, _string, _object, _list, _choice) if depth else (_number, _string)
    return chance.choice(kinds)(chance, depth)


def expression(chance: Random, depth: int) -> str:
    """A regular expression, nested so deep at most."""
    parts = []
    for _ in range(chance.randint(1, 4)):
        inner = f"({expression(chance, depth - 1)})" if depth and chance.random() < 0.5 else chance.choice(_ATOMS)
        parts.append(inner + chance.choice(_REPEATS))
    return chance.choice(("", "", "|")).join(parts)


def grammar(chance: Random) -> str:
    """Rules that refer to each other, with expressions, repetitions and schemas as their ends."""
    names = [f"r{number}" for number in range(chance.randint(1, 8))]
    ends = ('"a"', '"ab"', '""', f"/{chance.choice(_ATOMS)}{{1,900}}/", f"%json {json.dumps(schema(chance, 2))}")
    rules = [f"start: {names[0]}"]
    for name in names:
        ways = [
            " ".join(chance.choice((*names, *ends)) for _ in range(chance.randint(1, 3)))
            for _ in range(chance.randint(1, 4))
        ]
        rules.append(f"{name}: {' | '.join(ways)}")
    return "\n".join(rules)


def _number(chance: Random, depth: int) -> Schema:
    names = ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    said = {name: chance.choice(_NUMBERS) for name in names if chance.random() < 0.4}
    return {"type": chance.choice(("integer", "number")), **said}


def _string(chance: Random, depth: int) -> Schema:
    said: Schema = {name: chance.choice(_COUNTS) for name in ("minLength", "maxLength") if chance.random() < 0.4}
    if chance.random() < 0.4:
        said["pattern"] = chance.choice((*_PATTERNS, expression(chance, 2)))
    if chance.random() < 0.2:
        said["format"] = chance.choice(("date-time", "email", "ipv6", "uri", "uuid", "hostname", "duration"))
    return {"type": "string", **said}


def _object(chance: Random, depth: int) -> Schema:
    names = [f"k{number}" for number in range(chance.choice((1, 3, 10, 40)))]
    few = {name: schema(chance, depth - 1) for name in names[:3]}
    said: Schema = {"properties": {name: few.get(name, {"type": "string"}) for name in names}}
    said["required"] = names[: chance.choice((0, 1, len(names)))]
    for name in ("minProperties", "maxProperties"):
        if chance.random() < 0.15:
            said[name] = chance.choice(_COUNTS)
    if chance.random() < 0.3:
        said["additionalProperties"] = chance.choice((False, schema(chance, depth - 1)))
    if chance.random() < 0.2:
        said["patternProperties"] = {chance.choice(_PATTERNS): schema(chance, depth - 1)}
    return {"type": "object", **said}


def _list(chance: Random, depth: int) -> Schema:
    said = {name: chance.choice(_COUNTS) for name in ("minItems", "maxItems") if chance.random() < 0.4}
    return {"type": "array", "items": schema(chance, depth - 1), **said}


def _choice(chance: Random, depth: int) -> Schema:
    ways = [schema(chance, depth - 1) for _ in range(chance.choice((2, 5, 20)))]
    return {chance.choice(("anyOf", "anyOf", "oneOf", "allOf")): ways}
