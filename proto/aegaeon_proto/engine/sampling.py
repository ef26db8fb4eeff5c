"""The options of sampling and pooling that a request has; meanings are those of the wire, which are vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class ConstraintKind(Enum):
    """How a constraint's text is to be read."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens in a row."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """Behind `tokens` tokens of reasoning its end is chosen. `inside`: the output begins within reasoning."""

    tokens: int
    opening: TokenRun
    closing: TokenRun
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """Requirements of an output as a whole (proto Constraint). `kind`: None of one that this version does not know;
    `end_ids` are allowed where the output may end, and only there. `proof`: what has compiled it before; `share`: whose
    it is, among whom the compiling is shared.
    """

    kind: ConstraintKind | None
    text: str
    end_ids: tuple[int, ...]
    proof: str = field(default="", compare=False)
    share: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """No text is wanted (proto Pooling). `logits_of`: those of these tokens behind the prompt; empty: what the model's
    own head gives, or its hidden state."""

    logits_of: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a request; meanings are those of the wire (proto Sampling, Limits), which are vLLM's.

    temperature 0 is greedy; top_p 1, top_k 0, min_p 0, repetition_penalty 1 are off. Presence and frequency count
    output tokens, repetition prompt and output. `logprobs` is None for none, or how many of the likeliest to return
    beside the chosen token's own; they are those of the model's raw distribution, before penalties, bias and
    temperature. `stop_ids` cannot be chosen before `min_tokens` output tokens, and nothing but `allowed_ids` where
    there are some. The last token of one of `bad_words` is not chosen behind the others. `prompt_logprobs`: as
    `logprobs`, of the prompt's tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    allowed_ids: tuple[int, ...] = ()
    bad_words: tuple[TokenRun, ...] = ()
    prompt_logprobs: int | None = None
    reasoning: ReasoningBudget | None = None
    constraint: Constraint | None = None
