"""Grammars of constrained outputs, and what they may cost: one text has one meaning in gateways and sidecars.

A gateway refuses what cannot be compiled within these limits; a sidecar compiles under the same ones. They bound each
step as well: a mask whose limit is exceeded ends its own sequence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

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
    """The grammar in the library's own form. Raises ValueError where `text` is too long, or no JSON schema at all."""
    if len(text.encode()) > (most := MAX_TEXT_BYTES[kind]):
        raise ValueError(f"it has more than {most} bytes")
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
