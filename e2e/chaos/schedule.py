"""Which fault comes when: a function of the seed alone, so that a seed replays the sequence.

What a fault meets differs from run to run (names of pods, who leads), so a draw says which of those that are there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = (0.5, 2.0)  # between two faults
# The share of faults whose recovery the next one does not wait for.
OVERLAPPING = 0.25


@dataclass(frozen=True, slots=True)
class Drawn:
    """One fault. Draws are in [0, 1): `which` of the targets, and for `how_long`, or how much."""

    number: int
    kind: str
    which: float
    how_long: float
    pause_s: float
    overlaps: bool

    def choose(self, among: Sequence[T]) -> T:
        """The target. Raises IndexError when there is none."""
        return among[int(self.which * len(among))]

    def between(self, least: float, most: float) -> float:
        return least + self.how_long * (most - least)


def draw(seed: int, weights: Mapping[str, int]) -> Iterator[Drawn]:
    """Endless. Every deck has each kind as often as its weight says, shuffled: rare kinds are never left to luck."""
    random_ = random.Random(seed)
    number = 0
    while True:
        for kind in _deck(random_, weights):
            number += 1
            which, how_long = random_.random(), random_.random()
            yield Drawn(number, kind, which, how_long, random_.uniform(*PAUSE_S), random_.random() < OVERLAPPING)


def _deck(random_: random.Random, weights: Mapping[str, int]) -> list[str]:
    """Sorted first: the order in which kinds are written down means nothing."""
    deck = [kind for kind in sorted(weights) for _ in range(weights[kind])]
    random_.shuffle(deck)
    return deck
