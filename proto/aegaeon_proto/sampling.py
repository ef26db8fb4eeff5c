"""Bounds of what a request may ask of sampling: vLLM's, tighter where float32 would overflow.

A gateway refuses what is outside of them, a sidecar once more what arrives all the same. Numbers are judged as the wire
carries them: 1e-50 is above 0 in JSON and 0 in a float32.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Bounds:
    """An inclusive range. NaN is outside."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """True when a value, or its float32 form, is within the bounds."""
        return _single(self.low) <= value <= _single(self.high)

    def __str__(self) -> str:
        return f"from {self.low:g} to {self.high:g}"


LEAST_TEMPERATURE = 0.01
"""A smaller one counts as this, as in vLLM; 0 is greedy."""
# With |logits| up to 1e30 nothing within these leaves float32: neither a quotient by a penalty nor a product with it.
TEMPERATURE = Bounds(0.0, 2.0)
TOP_P = Bounds(1e-6, 1.0)
MIN_P = Bounds(0.0, 1.0)
PENALTY = Bounds(-2.0, 2.0)
REPETITION_PENALTY = Bounds(0.01, 10.0)
LOGIT_BIAS = Bounds(-100.0, 100.0)
TOP_K = Bounds(0, 2**31 - 1)
LOGPROBS = Bounds(0, 20)
MAX_LOGIT_BIAS = 1024
"""Tokens with a bias; each costs time in every step."""
MAX_STOP_IDS = 1024
"""EOS ids of the model and stop ids of the client together."""
MAX_ALLOWED_IDS = 16384
MAX_BAD_WORDS = 128
"""Each is two runs of tokens at most, with and without a space before it."""
MAX_BAD_RUN = 64
"""Tokens of such a run."""
MAX_PROMPT_LOGPROBS = 1 << 15
"""Tokens of a prompt times logprobs of each: some bytes each in one message to the gateway."""

DEFAULTS = {
    "temperature": TEMPERATURE,
    "top_p": TOP_P,
    "top_k": TOP_K,
    "min_p": MIN_P,
    "repetition_penalty": REPETITION_PENALTY,
}
"""What a model's generation_config.json may say."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A parameter outside of its bounds, by the name that clients use."""

    param: str
    message: str


class Run(Protocol):
    """Tokens in a row."""

    @property
    def tokens(self) -> Collection[int]: ...


class Budget(Protocol):
    """Marks of reasoning."""

    @property
    def opening(self) -> Run: ...
    @property
    def closing(self) -> Run: ...


class Sampling(Protocol):
    """The fields of the message of that name, or of a sidecar's own form. `logprobs`: None or 0 when there are none."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_p(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> Mapping[int, float]: ...
    @property
    def logprobs(self) -> int | None: ...
    @property
    def allowed_ids(self) -> Collection[int]: ...
    @property
    def bad_words(self) -> Collection[Run]: ...
    @property
    def prompt_logprobs(self) -> int | None: ...
    @property
    def reasoning(self) -> Budget | None: ...


def fault(sampling: Sampling) -> Fault | None:
    """The first parameter that cannot be computed with, or None."""
    for param, value, bounds in _scalars(sampling):
        if not bounds.holds(value):
            return Fault(param, f"{param}: {value:g} is not {bounds}")
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        return Fault("logit_bias", f"logit_bias: {len(sampling.logit_bias)} tokens are more than {MAX_LOGIT_BIAS}")
    for token, bias in sampling.logit_bias.items():
        if not LOGIT_BIAS.holds(bias):
            return Fault("logit_bias", f"logit_bias: {bias:g} for token {token} is not {LOGIT_BIAS}")
    return _count_fault(sampling)


def _count_fault(sampling: Sampling) -> Fault | None:
    if (count := len(sampling.allowed_ids)) > MAX_ALLOWED_IDS:
        return Fault("allowed_token_ids", f"allowed_token_ids: {count} tokens are more than {MAX_ALLOWED_IDS}")
    if (count := len(sampling.bad_words)) > 2 * MAX_BAD_WORDS:
        return Fault("bad_words", f"bad_words: {count} sequences of tokens are more than {2 * MAX_BAD_WORDS}")
    if (longest := max((len(run.tokens) for run in sampling.bad_words), default=1)) > MAX_BAD_RUN:
        return Fault("bad_words", f"bad_words: a text of {longest} tokens has more than {MAX_BAD_RUN}")
    return _reasoning_fault(sampling)


def _reasoning_fault(sampling: Sampling) -> Fault | None:
    budget = sampling.reasoning
    if budget is None or not budget.closing.tokens:
        return None
    longest = max(len(budget.opening.tokens), len(budget.closing.tokens))
    if longest > MAX_BAD_RUN:
        message = f"thinking_token_budget: a mark of {longest} tokens has more than {MAX_BAD_RUN}"
        return Fault("thinking_token_budget", message)
    return None


def _scalars(sampling: Sampling) -> Iterator[tuple[str, float, Bounds]]:
    yield "temperature", sampling.temperature, TEMPERATURE
    yield "top_p", sampling.top_p, TOP_P
    yield "top_k", sampling.top_k, TOP_K
    yield "min_p", sampling.min_p, MIN_P
    yield "presence_penalty", sampling.presence_penalty, PENALTY
    yield "frequency_penalty", sampling.frequency_penalty, PENALTY
    yield "repetition_penalty", sampling.repetition_penalty, REPETITION_PENALTY
    yield "logprobs", sampling.logprobs or 0, LOGPROBS
    yield "prompt_logprobs", sampling.prompt_logprobs or 0, LOGPROBS


@cache
def _single(value: float) -> float:
    """The nearest float32, cached for the few bounds that every request is compared with."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
