"""How long a group that is alone on its engine runs before another one takes its place.

While one comes and one goes nobody runs there, so the change is paid in time: the paper's Eq. 2 and 3, for places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon_scheduler.core.config import PolicySettings
from aegaeon_scheduler.core.estimate import Estimates
from aegaeon_scheduler.core.policies.slack.group import Load
from aegaeon_scheduler.core.state import Instance


@dataclass(frozen=True, slots=True)
class Crowd:
    """Live groups for each engine, and the share of its time that they ask for together."""

    groups: float
    util: float

    @staticmethod
    def over(utils: Sequence[float], engines: int) -> Crowd:
        """Of groups that each ask for such a share of one of these engines."""
        return Crowd(len(utils) / engines, sum(utils) / engines)

    def stay_s(self, util: float, change_s: float, settings: PolicySettings) -> float:
        """Seconds that a group with this share runs at least.

        In a round of `groups` turns with a change of `change_s` before each, everybody keeps the pace of its readers
        when the round lasts groups * change_s / (1 - util) and each runs for its share of that. The margin is for those
        who are late or come. Where the crowd asks for more than there is no round does: fewest changes do least harm.
        """
        most = settings.lone_stay_most * change_s
        if self.util >= 1.0:
            return most
        round_s = self.groups * change_s / (1.0 - self.util)
        return min(most, max(settings.lone_stay_least * change_s, settings.lone_margin * util * round_s))


def change_s(estimates: Estimates, inst: Instance, coming: Load, going: Sequence[Load]) -> float:
    """Seconds to bring in the weights of one group, and the KV of both sides one after the other."""
    estimate = estimates.of(coming.group.model.name, inst.device)
    kv_bytes = sum(load.nbytes - load.weights for load in (coming, *going))
    return estimate.load_s(coming.group.model.fp.weight_bytes) + estimate.kv_s(kv_bytes)
