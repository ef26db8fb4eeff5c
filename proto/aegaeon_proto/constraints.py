"""Grammars of constrained outputs, and their cost limits: a text has the same meaning in gateways and sidecars.

`LIMITS` are the library's own: they bound most of what a grammar may cost, compiled or followed, by counts. What they
miss is bounded by processes with limits of processor time and memory: in gateways for `PROOF`, in engines for `BUILD`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import llguidance
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from aegaeon_proto.engine.sampling import ConstraintKind

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions


@dataclass(frozen=True, slots=True)
class Cost:
    """Limits of a piece of work: processor time, and memory beyond that of its process."""

    cpu_s: float
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.cpu_s:g} s of CPU time or {self.memory_bytes >> 20} MiB of memory"


PROOF = Cost(cpu_s=0.5, memory_bytes=96 << 20)
"""for a gateway's worker to compile a constraint, with the model's tokenizer"""
BUILD = Cost(cpu_s=2.0, memory_bytes=256 << 20)
"""for an engine's process to compile one, and to follow it: more, since its processors may be slower"""
MAX_TEXT_BYTES = {
    ConstraintKind.JSON_SCHEMA: 64 << 10,
    ConstraintKind.REGEX: 16 << 10,
    ConstraintKind.LARK: 16 << 10,
}
"""Of a constraint; one literal of as many bytes takes 7 ms of every step."""
LIMITS = LLParserLimits(
    max_items_in_row=12_000,  # an object of 1,000 optional properties has 4,007
    initial_lexer_fuel=200_000,  # some 5 ms
    step_lexer_fuel=200_000,  # some 15 ms
    step_max_items=50_000,  # some 3 ms
    max_lexer_states=20_000,  # some 40 MB
    max_grammar_size=100_000,
    verbose_errors=False,
)
# No bound on white space: llguidance 1.7 ignores it; engines hold outputs to one, whatever their version.
_JSON: JsonCompileOptions = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r"[ \n\r\t]+",
    "coerce_one_of": False,
    "lenient": False,
}
JSON_OBJECT = '{"type":"object"}'
"""the schema of any JSON object"""


def proof_of(digest: str) -> str:
    """A gateway's proof that it compiled a constraint: the library, and the tokenizer.

    `digest`: SHA-256 of the model's tokenizer.json.
    """
    return f"llguidance {llguidance.__version__} {digest}"


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
    """Convert a grammar in GBNF, which other servers accept too, or Lark to Lark. Raises ValueError."""
    try:
        return str(any_to_lark(grammar))
    except Exception as error:  # llguidance raises Exception itself for what it cannot read
        raise ValueError(f"neither GBNF nor Lark: {error}") from error


def lark_of_choice(choices: Sequence[str]) -> str:
    """A grammar of exactly these texts."""
    spelled = (json.dumps(choice, ensure_ascii=False).replace("\x7f", "\\u007f") for choice in choices)
    return "start: " + " | ".join(spelled)


def matcher_of(kind: ConstraintKind, text: str, tokenizer: LLTokenizer) -> LLMatcher:
    """The matcher before any token. Raises ValueError. Its cost is unbounded: call it in a process with limits."""
    matcher = LLMatcher(tokenizer, grammar_of(kind, text), log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def fault(kind: ConstraintKind, text: str, tokenizer: LLTokenizer) -> str:
    """The reason why a constraint cannot be compiled, or has no first token; empty when it is valid. Costs as
    `matcher_of`."""
    try:
        matcher = matcher_of(kind, text, tokenizer)
    except ValueError as error:
        return str(error)
    matcher.compute_bitmask()
    return matcher.get_error() if matcher.is_error() else ""
