"""Tokens that an engine sends to gateways."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_proto.engine.ids import SeqId
from aegaeon_proto.engine.sequences import Finish


@dataclass(frozen=True, slots=True)
class Said:
    """Scores that the model gave a token of the prompt behind those before it. `rank`: 1 is the likeliest."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Token:
    """Output token `index` of a sequence, for its gateway. `top`: (token id, logprob), likeliest first.

    `pooled`: float32, little-endian, of a sequence without text.
    """

    seq: SeqId
    epoch: int
    index: int
    token: int = 0
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish: Finish | None = None
    cached_tokens: int = 0
    prompt: tuple[Said, ...] = ()
    prefill_s: float = 0.0
    load_s: float = 0.0
    stall_s: float = 0.0
    pooled: bytes = b""
