"""Grammars of constrained outputs, and what they may cost: one text has one meaning in gateways and sidecars.

A gateway refuses what cannot be compiled within these limits; a sidecar compiles under the same ones. They bound each
step as well: a mask whose limit is exceeded ends its own sequence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


class ConstraintKind(Enum):
    """How a constraint's text is to be read."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


MAX_TEXT_BYTES = {
    ConstraintKind.JSON_SCHEMA: 64 << 10,
    ConstraintKind.REGEX: 16 << 10,
    ConstraintKind.LARK: 16 << 10,
}
"""Of a constraint; one literal of as many bytes takes 7 ms of every step."""
MAX_COMMON_MULTIPLE = 10_000
"""of all `multipleOf` of one constraint: the library makes a state of each remainder, without a limit of its own"""
_MOST_DIGITS = 9  # before a decimal point
LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=200_000,  # some 5 ms
    step_lexer_fuel=200_000,  # some 15 ms
    step_max_items=50_000,  # some 3 ms
    max_lexer_states=20_000,  # some 40 MB
    max_grammar_size=100_000,
    verbose_errors=False,
)
# White space in a run is bounded: a model that has lost its thread would write nothing else until its limit.
_JSON: JsonCompileOptions = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r"[ \n\r\t]{1,40}",
    "coerce_one_of": False,
    "lenient": False,
}
JSON_OBJECT = '{"type":"object"}'
"""the schema of any JSON object"""


def grammar_of(kind: ConstraintKind, text: str) -> str:
    """The grammar in the library's own form. Raises ValueError where `text` is too long, has multiples that cannot be
    compiled at any bearable cost, or is no JSON schema at all."""
    if len(text.encode()) > (most := MAX_TEXT_BYTES[kind]):
        raise ValueError(f"it has more than {most} bytes")
    _check_multiples(kind, text)
    match kind:
        case ConstraintKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(text, overrides=_JSON)
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(text)
        case ConstraintKind.LARK:
            return LLMatcher.grammar_from_lark(text)


def lark_of(grammar: str) -> str:
    """A grammar of GBNF, which other servers take as well, or of Lark, as Lark. Raises ValueError."""
    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # llguidance raises Exception itself for what it cannot read
        raise ValueError(f"neither GBNF nor Lark: {error}") from error


def lark_of_choice(choices: Sequence[str]) -> str:
    """A grammar of exactly these texts."""
    spelled = (json.dumps(choice, ensure_ascii=False).replace("\x7f", "\\u007f") for choice in choices)
    return "start: " + " | ".join(spelled)


def fault(kind: ConstraintKind, text: str) -> str:
    """Why this cannot be compiled; empty when it can be. Takes CPU time and memory: within bounds of its own."""
    try:
        return LLMatcher.validate_grammar(grammar_of(kind, text), limits=LIMITS)
    except ValueError as error:
        return str(error)


def _check_multiples(kind: ConstraintKind, text: str) -> None:
    """Raises ValueError. What is no JSON is left to the library, which names the place."""
    schemas = {ConstraintKind.JSON_SCHEMA: [text], ConstraintKind.LARK: text.split("%json")[1:]}.get(kind, [])
    common = 1
    for value in (value for schema in schemas for value in _multiples(_decoded(schema))):
        common = MAX_COMMON_MULTIPLE + 1 if value.adjusted() > _MOST_DIGITS else math.lcm(common, _digits(value))
        if common > MAX_COMMON_MULTIPLE:
            raise ValueError(
                f"multipleOf: {value}: the values of multipleOf, without their decimal points, may have a common "
                f"multiple of at most {MAX_COMMON_MULTIPLE}; use a smaller one, or check the output yourself"
            )


def _decoded(text: str) -> Any:
    """The JSON value at the beginning of this text; None where there is none."""
    try:
        return json.JSONDecoder(parse_float=Decimal, parse_int=Decimal).raw_decode(text.lstrip())[0]
    except (ValueError, ArithmeticError, RecursionError):
        return None


def _multiples(schema: Any) -> Iterator[Decimal]:
    if isinstance(schema, list):
        for inner in schema:
            yield from _multiples(inner)
    elif isinstance(schema, dict):
        for keyword, inner in schema.items():
            if keyword == "multipleOf" and isinstance(inner, Decimal) and inner > 0:
                yield inner
            else:
                yield from _multiples(inner)


def _digits(value: Decimal) -> int:
    """The number without its decimal point: 5 of 0.05, 12 of 1.2, 300 of 300."""
    _, digits, exponent = value.normalize().as_tuple()
    zeros = exponent if isinstance(exponent, int) and exponent > 0 else 0
    return int("".join(map(str, digits)) + zeros * "0")
