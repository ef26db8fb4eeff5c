"""The batch that is too small for all sequences that decode, and the memory: who comes first, and who leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import itemgetter

from aegaeon_scheduler.core.policies.slack.order import due
from aegaeon_scheduler.core.state import Sequence

_Who = tuple[int, str]
"""a tier and a tenant"""


def in_places(ready: list[Sequence], places: int, now: float, soon_s: float) -> list[Sequence]:
    """Sequences that decode, in the order in which they get the places of a batch that is too small for all: those in
    time before late ones, first due first. If those that are due within `soon_s`, or late, are of several tenants or
    tiers, upper tiers come first, and each tenant has its part of the places by weight, be it in time or late."""
    ready.sort(key=lambda seq: (due(seq) < now, due(seq)))
    pressed = [seq for seq in ready if due(seq) < now + soon_s]
    greedy = _greedy(pressed, places)
    if len(greedy) < 2:
        return ready
    taken = Counter[_Who]()
    ranked: list[tuple[tuple[int, int, float], Sequence]] = []
    for seq in ready:
        who, at = _who(seq), due(seq)
        if at >= now + soon_s:
            ranked.append(((1, 0, 0.0), seq))
            continue
        taken[who] += 1
        kind = 2 if at < now and greedy[who] else 0
        ranked.append(((kind, who[0], taken[who] / seq.terms.weight), seq))
    ranked.sort(key=itemgetter(0))
    return [seq for _, seq in ranked]


def _greedy(pressed: list[Sequence], places: int) -> dict[_Who, bool]:
    """Tenants of each tier, and whether they need more than their part of the places that upper tiers leave."""
    counts, weights = Counter(map(_who, pressed)), {_who(seq): seq.terms.weight for seq in pressed}
    greedy: dict[_Who, bool] = {}
    for level in sorted({level for level, _ in counts}):
        tenants = [who for who in counts if who[0] == level]
        total = sum(weights[who] for who in tenants)
        greedy |= {who: counts[who] * total > places * weights[who] for who in tenants}
        places = max(0, places - sum(counts[who] for who in tenants))
    return greedy


def due_last(sequences: Iterable[Sequence]) -> list[Sequence]:
    """Sequences in the order in which they leave where memory is short: deferred ones and lower tiers first, of each
    tenant those that are due last, of all tenants those that most of the same tenant, over its weight, are due before.
    """
    taken = Counter[_Who]()
    ranked: list[tuple[bool, int, float, float, Sequence]] = []
    for seq in sorted(sequences, key=due):
        taken[_who(seq)] += 1
        ranked.append((seq.deferred, seq.terms.tier.level, taken[_who(seq)] / seq.terms.weight, due(seq), seq))
    ranked.sort(key=itemgetter(0, 1, 2, 3), reverse=True)
    return [seq for *_, seq in ranked]


def _who(seq: Sequence) -> _Who:
    return seq.terms.tier.level, seq.tenant
