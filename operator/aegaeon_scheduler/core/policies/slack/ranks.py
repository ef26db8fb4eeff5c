"""The shares of an objective by which groups are ranked and placed, and what is kept of a group at rest for it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple

from aegaeon_scheduler.core.domain import Role
from aegaeon_scheduler.core.state import Instance

URGENT_SHARE = 0.5
"""of TTFT: with less slack time is short. A group is placed even where there is no time, and before parts of long
prompts; and slack counts as it is, which is scaled beyond"""
HOT_UTIL = 0.6
"""utilization beyond which a group is hot: newcomers begin a second one where there is time"""
HOT_MARGIN = 0.25
"""a batch of one has a utilization already: a group is hot when it asks for this much more; and where its prompts take
this share of TTFT, as of a model that all ask for at once"""
LONE_SHARE = 0.3
"""of TTFT: a group with one sequence in time ranks so much later, with n of them an n-th of it: where not all can be in
time, those that share their steps with fewest come late"""
PREEMPT_SHARE = 0.3
"""of TTFT: a group must rank so much later than the one that preempts it; weights move a rank no further"""
TIER_SHARE = 0.5
"""of TTFT, by which a tier ranks later than the one above: more than what it takes to be preempted, and than what greed
makes"""
LITTLE_SHARE = 0.1
"""of TTFT, in seconds of an engine: up to here tenants of a model are level, and their prompts begin as they come; and
no prompt of a greedy model counts as long"""


class Kind(Enum):
    """The work that a group does."""

    WHOLE = (Role.UNIFIED,)
    PROMPTS = (Role.PREFILL,)
    DECODES = (Role.DECODE, Role.UNIFIED)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles of instances that a group of this kind may be placed on."""
        roles: tuple[Role, ...] = self.value
        return roles


@dataclass(slots=True)
class Still:
    """A group at rest: deadlines in order, tokens of context, KV blocks; the instance and the node it is bound to.

    `nbytes`: of its weights and KV; `longest`: tokens of its longest member.
    """

    dues: list[float]
    context: int
    blocks: int
    nbytes: int
    longest: int
    only: Instance | None
    node: str | None

    def soonest(self, now: float) -> tuple[float, int, int]:
        """When the most urgent member in time is due; how many are late, and in time."""
        late = bisect_left(self.dues, now)
        alive = len(self.dues) - late
        return (self.dues[late] if alive else inf), late, alive


class Order(NamedTuple):
    """Seconds on the scheduler's clock: when a group's most urgent token is due, what it is sorted by, the least rank
    of what is preempted for it, until when these hold unless it changes, and until when they are no less than that."""

    key: float
    rank: float
    least: float
    until: float = -inf
    rises_until: float = -inf
