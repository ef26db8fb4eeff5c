"""The result of a step for a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import numpy as np
from numpy.typing import NDArray

from aegaeon_proto.engine.tokens import Said


@dataclass(slots=True)
class Sampled:
    """One sampled token; logprobs only where the request asked for them: (token id, logprob), likeliest first.

    Immutable by convention: one is made for each row of each step, and a frozen one takes longer to make.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Logits without a possible choice: NaN or infinite, as the model computed them or (`by_request`) through the
    request's own penalties and biases."""

    by_request: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The sequence's constraint cannot be followed any further; the reason is for its client. `ours`: the request is
    not at fault, and may be tried again."""

    reason: str
    ours: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """The model's output for a prompt, float32 [numbers]."""

    values: NDArray[np.float32]


Picked = Union[Sampled, NotFinite, Refused, None]


@dataclass(frozen=True, slots=True)
class Scored:
    """Logprobs of the prompt tokens after those of the step, and the token chosen after the last."""

    prompt: tuple[Said, ...]
    chosen: Picked


Chosen = Union[Picked, Scored, Pooled]
