"""KV pressure ratio (KVPR): by how much the KV of an instance's models grows, over the memory that they share for it.

A model's part is tokens a second times bytes of KV of a token over TBT. Placement keeps the largest ratio small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from aegaeon_scheduler.core.domain import InstanceId

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Demand:
    """Resources that a model needs: `growth` of KV, bytes of weights. It is `at` an instance, and may go to those of
    `able`.
    """

    growth: float
    weight_bytes: int
    able: tuple[InstanceId, ...]
    at: InstanceId


@dataclass(slots=True)
class Share:
    """Resources that models leave of an instance: bytes for KV, and the sum of its growth."""

    free_bytes: int
    growth: float = 0.0

    def ratio(self, growth: float = 0.0, weight_bytes: int = 0) -> float:
        """KVPR with one more model; infinite where no memory is left for KV."""
        left = self.free_bytes - weight_bytes
        return (self.growth + growth) / left if left > 0 else inf

    def add(self, growth: float, weight_bytes: int) -> None:
        """The model is placed there."""
        self.growth += growth
        self.free_bytes -= weight_bytes


def least(
    shares: Mapping[InstanceId, Share], able: Iterable[InstanceId], growth: float, weight_bytes: int
) -> InstanceId | None:
    """Where KVPR is least with the model, of equal ones where most memory is left; None where all are full."""
    best, best_key = None, (inf, 0)
    for place in able:
        share = shares[place]
        key = (share.ratio(growth, weight_bytes), -share.free_bytes)
        if key[0] < inf and key < best_key:
            best, best_key = place, key
    return best


def balance(models: Mapping[K, Demand], memory: Mapping[InstanceId, int], threshold: float) -> dict[K, InstanceId]:
    """Algorithm 1: models in falling order of growth, each where KVPR comes to be least; those that move, and where to.

    A model stays where it is unless it grows and KVPR there is larger by this share. `memory`: bytes of each instance.
    """
    shares = {place: Share(nbytes) for place, nbytes in memory.items()}
    moved: dict[K, InstanceId] = {}
    for key, need in sorted(models.items(), key=lambda item: -item[1].growth):
        ratio = shares[need.at].ratio(need.growth, need.weight_bytes)
        best = least(shares, need.able, need.growth, need.weight_bytes)
        place = need.at
        if (
            best is not None
            and need.growth
            and ratio > (1 + threshold) * shares[best].ratio(need.growth, need.weight_bytes)
        ):
            place = moved[key] = best
        shares[place].add(need.growth, need.weight_bytes)
    return moved
