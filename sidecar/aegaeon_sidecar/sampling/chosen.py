"""What a step chose for a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled token; logprobs only where the request asked for them: (token id, logprob), likeliest first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class NotFinite:
    """No token can be chosen: the logits are NaN or infinite, as the model computed them or (`asked`) as the request's
    own penalties and biases made them."""

    asked: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The sequence's constraint cannot be followed any further; the reason is for its client."""

    reason: str


Chosen = Union[Sampled, NotFinite, Refused, None]
