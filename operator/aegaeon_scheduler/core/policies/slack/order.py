"""Who comes first: when sequences are due, by which shares of an objective groups rank, in which order prompts begin.

Prompts begin first come first served, but for what is deferred, and for priorities. A priority counts among requests of
its tenant alone: of the places that they have in the queue the first goes to the one of the lowest number, and the one
that had it takes the other place. So all others begin when they would have begun without.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple, cast

from aegaeon_scheduler.core.batch import Row
from aegaeon_scheduler.core.book import blocks_for, least_slabs
from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import Role, SeqId
from aegaeon_scheduler.core.policies.slack.tenants import Clock, Visit
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model, Sequence

URGENT_SHARE = 0.5
"""of TTFT: with less slack time is short. A group is placed even where there is no time, and before parts of long
prompts; and slack counts as it is, which is scaled beyond"""
HOT_UTIL = 0.6
"""utilization beyond which a group is hot: newcomers begin a second one where there is time"""
HOT_MARGIN = 0.25
"""a batch of one has a utilization already: a group is hot when it asks for this much more; and where its prompts take
this share of TTFT, as of a model that all ask for at once"""
PREEMPT_SHARE = 0.3
"""of TTFT: a group must rank so much later than the one that preempts it; company and weights move a rank no further"""
LONE_SHARE = PREEMPT_SHARE
"""of TTFT: a group with one sequence in time ranks so much later, with n of them an n-th of it: where not all can be in
time, those that share their steps with fewest come late"""
TIER_SHARE = 0.5
"""of TTFT, by which a tier ranks later than the one above: more than what it takes to be preempted, and than what greed
makes"""
LITTLE_SHARE = 0.1
"""of TTFT, in seconds of an engine: up to here tenants of a model are level, and their prompts begin as they come; and
no prompt of a greedy model counts as long"""
ENGINE_PRICE = 20.0
"""times a second of an engine that one request costs all others on it: as so much slack it counts or, over TTFT, as
utilization. A prompt that is cached elsewhere; first steps on a second engine; a greedy model's prompt"""

Level = tuple[int, bool]
"""a tier, and whether prompts are deferred"""
Queue = tuple[Level, str]
"""prompts of a tenant that are of one tier, and deferred or not: those of one model are one queue"""


class Member(Row):
    """A sequence of a group: from when its deadlines count (seconds), at its promise or later, and its place in the
    queue of prompts: by arrival, until a priority of its tenant moves it.

    `queue`: where its prompt waits. Its tenant is charged `cost_s` once it has begun, of which `token_s` for each of
    `answer` tokens; `charged`: by which clock, and to which visit of the tenant.
    """

    __slots__ = ("answer", "charged", "cost_s", "due_from", "queue", "queue_place", "token_s")

    def __init__(self, seq: Sequence) -> None:
        self.due_from = seq.promised_from
        self.queue_place = seq.order
        self.queue = queue_of(seq)
        self.cost_s = self.token_s = self.answer = 0.0
        self.charged: tuple[Clock, Visit | None] | None = None


def queue_of(seq: Sequence) -> Queue:
    """The queue in which a prompt waits."""
    return (seq.terms.tier.level, seq.deferred), seq.tenant


def member(seq: Sequence) -> Member:
    """The policy's row of a sequence that is in a group."""
    return cast(Member, seq.row)


class Standing:
    """The rank of a model beside others while it has groups: seconds that it is `behind` its deadlines, of these
    `tier_s` for its tier; `greed` is 0 to 1, how many times its part of the engines it holds.

    `weighed`: weights of models differ, so that they share out the time. `ranked`: some of its requests were deferred
    or had a priority. `tiered`: some had another tier than most.
    """

    __slots__ = ("_clocks", "behind", "greed", "ranked", "tier_s", "tiered", "weighed")

    def __init__(self) -> None:
        self._clocks: dict[tuple[int, bool], Clock] = {}
        self.behind = self.tier_s = self.greed = 0.0
        self.weighed = self.ranked = self.tiered = False

    def clock(self, queue: Queue) -> Clock:
        """The clock of the tenants whose prompts wait in a queue like this: of its tier, deferred or not."""
        clock = self._clocks.get(queue[0])
        if clock is None:
            clock = self._clocks[queue[0]] = Clock()
        return clock

    def waits_below(self, queue: Queue) -> bool:
        """Returns whether prompts of a lower tier wait."""
        return self.tiered and any(clock.active for (tier, _), clock in self._clocks.items() if tier > queue[0][0])


def tokens(seq: Sequence) -> int:
    """Tokens of context that it has or, before its prefill, will have."""
    return max(seq.projected_kv, seq.prompt_tokens + seq.prefix_tokens)


def too_small(pool: Pool, inst: Instance, model: Model, length: int) -> bool:
    """Returns whether a sequence of this length does not fit the instance, empty as it may be, but fits another one."""
    if _holds(inst, model, length):
        return False
    return any(_holds(i, model, length) for i in pool.fleet.of(model).open)


def _holds(inst: Instance, model: Model, length: int) -> bool:
    return model.footprint is None or least_slabs(model.fp, length + 1, inst.slab_bytes) <= inst.slabs


def planned_output(seq: Sequence) -> int:
    """Output tokens that it will have when all in-flight turns have run."""
    made = seq.projected_kv - seq.prompt_tokens
    return made + 1 if made >= seq.prefix_tokens and seq.projected_kv else seq.output_tokens


def due(seq: Sequence) -> float:
    """When its next token is due, in-flight turns counted as run."""
    slo = seq.model.config.slo
    return member(seq).due_from + slo.ttft_s + planned_output(seq) * slo.tbt_s


def priced(seq: Sequence) -> bool:
    """Returns whether a sequence is due later than was promised, for what its prompt takes."""
    return member(seq).due_from > seq.promised_from


def kv_blocks(seq: Sequence) -> int:
    """KV blocks that it has or, before its prefill, will need."""
    tokens = max(seq.kv_tokens, seq.projected_kv, seq.prompt_tokens + seq.prefix_tokens)
    return blocks_for(seq.model.fp, tokens)


RELATIVE_POWER = 0.75
"""0 would rank by when a token is due alone, 1 by the share of the promise that is left: between both strict
objectives, which have less time for a switch, are kept longer"""
_LEAST_S = 1e-3  # no objective counts as shorter: its slack would be all that counts


@dataclass(frozen=True, slots=True)
class Scale:
    """Seconds up to which slack counts as it is, what each second beyond counts for, and how much later than now a
    group ranks that is late: as much as one with the loosest objective and that slack."""

    even_s: float
    factor: float
    late_s: float

    def rank_s(self, slack_s: float) -> float:
        """Seconds by which a group with this slack ranks later than now: no more than it has."""
        beyond_s = slack_s - self.even_s
        return slack_s if beyond_s <= 0.0 else self.even_s + beyond_s * self.factor


ALIKE = Scale(0.0, 1.0, 0.0)
"""where all models with work have the same TTFT: the time itself is the rank"""


class Objectives:
    """The shortest and the longest TTFT of models, seconds."""

    def __init__(self, settings: SlackSettings) -> None:
        self._settings = settings
        self.least_s = self.most_s = _LEAST_S

    def changed(self, models: Iterable[Model]) -> bool:
        """Returns whether scales have changed: the models that have groups are these by now."""
        before_least_s, before_most_s = self.least_s, self.most_s
        least_s, most_s = inf, _LEAST_S
        for model in models:
            ttft_s = model.config.slo.ttft_s
            least_s = ttft_s if ttft_s < least_s else least_s
            most_s = ttft_s if ttft_s > most_s else most_s
        if least_s < inf:
            self.least_s, self.most_s = max(least_s, _LEAST_S), most_s
        return before_least_s != self.least_s or before_most_s != self.most_s

    def scale(self, model: Model) -> Scale:
        """Returns the scale of a model's slack."""
        if self.most_s <= self.least_s:
            return ALIKE
        even_s = URGENT_SHARE * self.least_s
        loosest = Scale(even_s, self._factor(self.most_s), 0.0)
        return Scale(even_s, self._factor(model.config.slo.ttft_s), loosest.rank_s(self._settings.late_slack_s))

    def _factor(self, ttft_s: float) -> float:
        return float((self.least_s / max(ttft_s, self.least_s)) ** RELATIVE_POWER)


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


def in_order(prompts: Mapping[SeqId, Sequence], ranked: bool) -> Iterable[Sequence]:
    """Prompts of a group that are still to be issued, the next one first."""
    return by_rank(prompts.values()) if ranked else prompts.values()


def by_rank(prompts: Iterable[Sequence]) -> Iterator[Sequence]:
    """The same of prompts of one model."""
    places = sorted(prompts, key=_place)
    queues: dict[Queue, list[Sequence]] = defaultdict(list)
    for seq in places:
        queues[queue_of(seq)].append(seq)
    turns = {key: iter(sorted(queue, key=lambda seq: seq.priority)) for key, queue in queues.items()}
    return (next(turns[queue_of(seq)]) for seq in places)


def begun(seq: Sequence, prompts: Iterable[Sequence]) -> None:
    """One of these prompts is issued, in the first place of its tenant."""
    first = min((other for other in prompts if queue_of(other) == queue_of(seq)), key=_place)
    member(first).queue_place, member(seq).queue_place = member(seq).queue_place, member(first).queue_place


def _place(seq: Sequence) -> tuple[bool, int, int]:
    return seq.deferred, seq.terms.tier.level, member(seq).queue_place
