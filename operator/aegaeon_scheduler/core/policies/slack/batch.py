"""Places of a batch that is too small for all that decode: who gets one next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import itemgetter

from aegaeon_scheduler.core.policies.slack.order import due
from aegaeon_scheduler.core.state import Sequence


def in_places(ready: list[Sequence], places: int, now: float, soon_s: float) -> list[Sequence]:
    """Sequences that decode, in the order in which they get the places of a batch that is too small for all: those in
    time before late ones, first due first. If more are due within `soon_s`, or late, than there are places, and they
    are of several tenants, each tenant has its part of the places, be it in time or late."""
    ready.sort(key=lambda seq: (due(seq) < now, due(seq)))
    pressed = [seq for seq in ready if due(seq) < now + soon_s]
    counts = Counter(seq.tenant for seq in pressed)
    if len(counts) < 2:
        return ready
    part = places / len(counts)
    taken = Counter[str]()
    ranked: list[tuple[int, int, Sequence]] = []
    for seq in ready:
        taken[seq.tenant] += 1
        late = due(seq) < now
        kind = 0 if counts[seq.tenant] <= part else 2 if late else 0
        ranked.append((kind, taken[seq.tenant], seq) if late or due(seq) < now + soon_s else (1, 0, seq))
    ranked.sort(key=itemgetter(0, 1))
    return [seq for _, _, seq in ranked]


def due_last(sequences: Iterable[Sequence]) -> list[Sequence]:
    """Sequences in the order in which they leave where memory is short: of each tenant those first that are due last,
    of all tenants those that most of the same tenant are due before. So who has few keeps them."""
    taken = Counter[str]()
    ranked: list[tuple[int, float, Sequence]] = []
    for seq in sorted(sequences, key=due):
        taken[seq.tenant] += 1
        ranked.append((taken[seq.tenant], due(seq), seq))
    ranked.sort(key=itemgetter(0, 1), reverse=True)
    return [seq for _, _, seq in ranked]
