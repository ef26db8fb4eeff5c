"""Schemas as applications send them, each bounded, so that an output can end before it meets a length limit.

By keyword, with the combinations in which implementations differ, and at random from a seed.
"""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]
_NAMES = ("id", "name", "größe", "a b", 'quote"d', "back\\slash", "x/y", "$ref", "")
_PATTERNS = ("^[a-c]{2,4}$", "^(yes|no)$", "[0-9]{3}", "^\\d{4}-\\d{2}$", "^ab?c+$")
_FORMATS = ("date", "time", "date-time", "ipv4", "uuid", "duration")


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_SHORT = {"type": "string", "maxLength": 5}
_DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}

NAMED: dict[str, Schema] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "short string": _SHORT,
    "lengths": {"type": "string", "minLength": 3, "maxLength": 6},
    "empty string": {"type": "string", "maxLength": 0},
    "range": {"type": "integer", "minimum": -17, "maximum": 123},
    "exclusive range": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
    "multiple": {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 7},
    "decimal": {"type": "number", "minimum": 0.25, "maximum": 0.75, "multipleOf": 0.25},
    "const": {"const": {"a": [1, None, "x"]}},
    "enum": {"enum": ["red", 3, None, True, {"k": "v"}, "grün", 'q"', "b\\"]},
    "typed enum": {"type": "string", "enum": ["red", 3, "blue"]},
    "types": {"type": ["null", "boolean"]},
    "any of": {"anyOf": [{"const": "a"}, _DIGIT]},
    "one of, by a constant": {
        "oneOf": [_object(kind={"const": "a"}, n=_DIGIT), _object(kind={"const": "b"}, s=_SHORT)]
    },
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 12}]},
    "all of objects": {"allOf": [_object(a=_DIGIT), {"properties": {"a": {"minimum": 5}}}]},
    "any of beside properties": {
        "type": "object",
        "properties": {"a": _DIGIT},
        "additionalProperties": False,
        "anyOf": [{"required": ["a"]}, {"properties": {"a": {"const": 1}}}],
    },
    "array": {"type": "array", "items": _DIGIT, "maxItems": 3},
    "array of at least": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [_DIGIT, _SHORT], "items": False, "minItems": 2},
    "tuple and more": {"type": "array", "prefixItems": [_DIGIT], "items": {"type": "null"}, "maxItems": 3},
    "nested arrays": {"type": "array", "items": {"type": "array", "items": _DIGIT, "maxItems": 2}, "maxItems": 2},
    "object": _object(a=_DIGIT, b=_SHORT),
    "optional": {"type": "object", "properties": {"a": _DIGIT, "b": _SHORT}, "additionalProperties": False},
    "odd names": _object(**{name: {"type": "boolean"} for name in _NAMES}),
    "additional": {
        "type": "object",
        "properties": {"a": _DIGIT},
        "additionalProperties": {"type": "null"},
        "required": ["a"],
        "maxProperties": 2,
    },
    "empty object": {"type": "object", "additionalProperties": False},
    "nested objects": _object(a=_object(b=_object(c=_DIGIT))),
    "reference": {"$ref": "#/$defs/d", "$defs": {"d": _object(a=_DIGIT)}},
    "references": {**_object(l={"$ref": "#/$defs/d"}, r={"$ref": "#/$defs/d"}), "$defs": {"d": _DIGIT}},
    "escaped reference": {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "boolean"}}},
    "recursion": {
        "$ref": "#/$defs/n",
        "$defs": {"n": {**_object(v=_DIGIT, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]})}},
    },
    "annotations": {"title": "T", "description": "d", "default": 3, "examples": [1], "$comment": "c", **_DIGIT},
    "draft 7 definitions": {"definitions": {"d": _DIGIT}, **_object(a={"$ref": "#/definitions/d"})},
    "false beside": _object(a={"anyOf": [{"type": "null"}, False]}),
    **{f"pattern {pattern}": {"type": "string", "pattern": pattern, "maxLength": 7} for pattern in _PATTERNS},
    **{f"format {name}": {"type": "string", "format": name} for name in _FORMATS},
}


def random_schema(chance: random.Random, depth: int = 3) -> Schema:
    """One of bounded size; what a library cannot follow among them is for the test to skip."""
    leaves = (_leaf, _leaf) if depth == 0 else (_leaf, _array, _record, _record, _union)
    return chance.choice(leaves)(chance, depth)


def _leaf(chance: random.Random, _: int) -> Schema:
    low = chance.randint(-50, 50)
    return chance.choice(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 200)},
            {"type": "string", "minLength": chance.randint(0, 2), "maxLength": chance.randint(2, 6)},
            {"type": "string", "pattern": chance.choice(_PATTERNS), "maxLength": 8},
            {"type": "string", "format": chance.choice(_FORMATS)},
            {"enum": chance.sample(["a", "bé", 1, 2.5, None, False, [1], {"x": "y"}], 3)},
            {"const": chance.choice(["k", 7, None, [True], {"é": 1}])},
        ]
    )


def _array(chance: random.Random, depth: int) -> Schema:
    least = chance.randint(0, 2)
    return {
        "type": "array",
        "items": random_schema(chance, depth - 1),
        "minItems": least,
        "maxItems": least + chance.randint(0, 2),
    }


def _record(chance: random.Random, depth: int) -> Schema:
    names = chance.sample(_NAMES, chance.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: random_schema(chance, depth - 1) for name in names},
        "required": [name for name in names if chance.random() < 0.6],
        "additionalProperties": False,
    }


def _union(chance: random.Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(chance, depth - 1) for _ in range(chance.randint(1, 3))]}
