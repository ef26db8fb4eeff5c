"""What is asked: single prompts that arrive at random, and agents that ask three models at once, round after round."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.peers.models import LARGE, NAMES

TOKENS = 32  # of an answer
_PROMPT = (48, 160)  # tokens of a single prompt
_SHARED, ROUNDS = 384, 3  # tokens that an agent's prompts begin with, and how often it asks
_AGENTS_EVERY_S = 15.0  # at a load of 1
_AGENT = LARGE[:3]


@dataclass(frozen=True, slots=True)
class Session:
    """`models` are asked at the same time; in each of `rounds` the prompt grows by the answers of the last."""

    at_s: float
    models: tuple[str, ...]
    prompt: str
    rounds: int = 1


def trace(words: Sequence[str], load: float, seconds: float, seed: int) -> list[Session]:
    """`load`: single prompts a second, over all models; agents come in proportion, spread over the time."""
    chance = random.Random(seed)

    def text(tokens: int) -> str:
        return " ".join(chance.choices(words, k=tokens))

    singles = [
        Session(at, (chance.choice(NAMES),), text(chance.randint(*_PROMPT))) for at in _arrivals(chance, load, seconds)
    ]
    every_s = min(seconds, _AGENTS_EVERY_S / load)
    agents = [
        Session((turn + chance.random()) * every_s, _AGENT, text(_SHARED), ROUNDS)
        for turn in range(max(1, round(seconds / every_s)))
    ]
    return sorted([*singles, *agents], key=lambda one: one.at_s)


def _arrivals(chance: random.Random, rate: float, seconds: float) -> Iterator[float]:
    at = chance.expovariate(rate)
    while at < seconds:
        yield at
        at += chance.expovariate(rate)
