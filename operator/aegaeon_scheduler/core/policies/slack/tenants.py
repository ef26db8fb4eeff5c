"""Tenants of one model: whose prompt begins next where it is asked for more than it can serve, and who is in a batch.

Start-time fair queueing (Goyal, Vin, Cheng 1996) of prompts, by what was used and not by what requests are expected to
take, since answers' lengths are not known. It rules from when a tenant has had so much more than one that waits, until
no prompt waits: so nothing changes where no tenant takes more than its part from others.
A model has a clock of its own: across models who is late first is decided by rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf
from operator import itemgetter

from aegaeon_scheduler.core.commands import Turn
from aegaeon_scheduler.core.estimate import Estimate
from aegaeon_scheduler.core.policies.slack.sequences import due
from aegaeon_scheduler.core.state import Issued, Sequence


class Clock:
    """Engine seconds of a model's tenants, over their weights, since a prompt last came where no other one waited.

    `fair`: prompts begin in this order, the tenant first that has had least.
    """

    __slots__ = ("_level", "_used", "fair")

    def __init__(self) -> None:
        self.fair = False
        self._used: dict[str, float] = {}
        self._level = 0.0  # what the tenant had had whose prompt began last: who comes anew has had as much

    @property
    def several(self) -> bool:
        """Returns whether prompts of more than one tenant came: else there is nothing to count."""
        return len(self._used) > 1

    def used(self, tenant: str) -> float:
        """Returns the weighted seconds that a tenant used; one that is new has no credit for its absence."""
        return self._used.get(tenant, self._level)

    def behind(self, seq: Sequence) -> tuple[int, float]:
        """Returns what puts a sequence behind others of its model: its tier, and where that counts, what its tenant has
        had.
        """
        return seq.terms.tier.level, self.used(seq.tenant) if self.fair else 0.0

    def joins(self, seq: Sequence, waiting: Iterable[Sequence]) -> None:
        """A prompt comes to these of its model that wait."""
        alone = True
        for other in waiting:
            if other.tenant == seq.tenant:
                return
            alone = False
        if alone:
            self.fair, self._level = False, 0.0
            self._used.clear()
        self._used[seq.tenant] = max(self.used(seq.tenant), self._level)

    def runs(self, turn: Issued, estimate: Estimate, places: int) -> None:
        """A turn is issued: a prompt counts with what it is estimated to take, a step as a place in a full batch,
        however many share it, so that tokens of all have one price."""
        members, body = list(turn.members.values()), turn.body
        kv = sum(seq.projected_kv for seq in members)
        if not members:
            return
        if turn.steps:
            self._charge(turn.steps * estimate.step_s(kv * places // len(members), places) / places, members)
        elif isinstance(body, Turn):
            self._level = max(self._level, *(self.used(seq.tenant) for seq in members))
            part = sum(part.tokens for part in body.prefill)
            self._charge(estimate.part_s(kv - part, part) / len(members), members)

    def _charge(self, each_s: float, members: list[Sequence]) -> None:
        for seq in members:
            self._used[seq.tenant] = self.used(seq.tenant) + each_s / seq.terms.weight

    def watch(self, waiting: Iterable[Sequence], most_s: float) -> None:
        """Notes whether a tenant has had so much more than one of which a prompt waits."""
        if not self.fair:
            least = min((self.used(seq.tenant) for seq in waiting), default=inf)
            self.fair = max(self._used.values()) - least > most_s


def in_places(sequences: Iterable[Sequence], count: int, now: float, soon_s: float) -> list[Sequence]:
    """In the order in which they get the `count` places of a batch that is too small for all: what is due within
    `soon_s`, then what is late of tenants that have more than their part of the places, then who is ahead. Of each an
    upper tier first, in a tier each tenant's part by weight, of a tenant those that are due first."""
    order = sorted(sequences, key=due)
    weights = {seq.tenant: seq.terms.weight for seq in order}
    asking, total = Counter(seq.tenant for seq in order), sum(weights.values())
    takes = {tenant: len(weights) > 1 and asking[tenant] * total > count * weights[tenant] for tenant in weights}
    ranked: list[tuple[tuple[int, int, float], Sequence]] = []
    taken = Counter[tuple[int, int, str]]()
    for seq in order:
        at, level = due(seq), seq.terms.tier.level
        kind = 2 if at > now + soon_s else int(at < now and takes[seq.tenant])
        taken[kind, level, seq.tenant] += 1
        ranked.append(((kind, level, taken[kind, level, seq.tenant] / seq.terms.weight), seq))
    ranked.sort(key=itemgetter(0))
    return [seq for _, seq in ranked]
