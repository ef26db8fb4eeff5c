"""The core's configuration, read once by the process that hosts it. Frozen: a change needs a new scheduler.

Each field documents its unit and the reason for its value; the reader of the file rejects unknown names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Union

from aegaeon_scheduler.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LatencyConstants:
    """Eq. 4-6 for one model on one device, with a batch term and a floor; refined online from reports.

    step = a + b * context tokens + c * batch; prefill = max(floor, p0 + p1 * tokens + p2 * tokens^2); seconds.
    """

    a: float = 1.0e-2
    b: float = 1.0e-7
    c: float = 1.0e-4
    p0: float = 8.0e-3
    p1: float = 2.5e-5
    p2: float = 2.0e-10
    floor: float = 1.5e-2
    load_bytes_per_s: float = 20e9
    kv_bytes_per_s: float = 20e9


@dataclass(frozen=True, slots=True)
class ConstantsOf:
    """Constants given for one model on one device ("" stands for any)."""

    model: str
    device: str
    constants: LatencyConstants


@dataclass(frozen=True, slots=True)
class PaperSettings:
    """Policy `paper`: Algorithms 1 and 2 with the paper's values where it names them."""

    name: Literal["paper"] = "paper"
    # Eq. 2-3: longest turn of a batch, seconds. The paper's value; shorter rounds, more switches.
    q_max_s: float = 4.0
    # Algorithm 1: requests that may ever join one prefill group (cumulative), so that a group cannot starve others.
    max_gpsize: int = 8
    # Eq. 3: lower bound of the share (0 to 1) that token deadlines leave to decoding.
    alpha_floor: float = 0.5
    # Turn length, seconds, when no load is ahead (the formula gives 0): long enough to hide the control round trip.
    resident_quota_s: float = 0.1
    # Shortest turn, seconds, where loads are so quick that the formula gives less: it outlasts the control round trip.
    min_quota_s: float = 0.02
    # Steps of one turn at most: bounds the KV growth that is granted ahead. `q_max_s` is reached with steps of 2 ms.
    max_turn_steps: int = 2048


@dataclass(frozen=True, slots=True)
class SlackSettings:
    """Policy `slack`: earliest deadline first; the group with the most slack is preempted."""

    name: Literal["slack"] = "slack"
    # Decode steps of one turn: fewer cost control and changes of the running model, more cost urgency.
    quantum_steps: int = 8
    # Seconds of one turn of a long prompt: about a quantum of decode steps, so that a newcomer waits no longer for it.
    part_s: float = 0.1
    # Seconds of the shortest one, where others are due soon: less does not pay for the turn.
    least_part_s: float = 0.025
    # Seconds from now at which late sequences count as due: they are batched along, they do not drive the order.
    late_slack_s: float = 20.0
    # Slack beyond a share of the shortest TTFT with work counts by the ratio of that TTFT to the model's own, to this
    # power: with 0 by when it is due alone, with 1 relative to what was promised. Between both strict objectives, which
    # have less time for a switch, are kept longer.
    relative_power: float = 0.75
    even_share: float = 0.5
    # Seconds between two passes over the pool at most, while there is work.
    pass_interval_s: float = 0.2
    # Seconds between two passes at least: what changes within them is decided on at once.
    pass_gap_s: float = 0.05
    # Share of TTFT by which a group with one sequence in time comes later, with n of them an n-th of it: where not all
    # can be in time, those that share their steps with fewest come late.
    lone_share: float = 0.3
    # Utilization of an instance beyond which nothing is placed there, but what is urgent.
    full_util: float = 0.9
    # Utilization below which an instance counts as idle: it takes any group, however busy that makes it.
    idle_util: float = 0.02
    # Utilization beyond which a group is hot: newcomers begin a second one where there is time.
    hot_util: float = 0.6
    # A batch of one has a utilization already: a group is hot when it asks for this much more than that.
    hot_margin: float = 0.25
    # Share of TTFT that a group's prompts take beyond which it is hot as well: a model that all ask for at once.
    swamped_share: float = 0.25
    # Utilization by which another instance must be below a full one that has a model's idle weights, so that a new
    # group waits for a load there: less than that does not pay for the load.
    idle_gap: float = 0.2
    # Share of TTFT that is left when a waiting group is placed even where there is no time.
    urgent_share: float = 0.5
    # Share of TTFT by which a tier comes later than the one above it: more than
    # preempt_share, so that it is preempted.
    tier_share: float = 0.5
    # Share of TTFT: while nothing waits for an engine, and no tier but the lowest of this one has a prompt that waits
    # or less slack than this, tiers do not count for its turns: all can be in time.
    ease_share: float = 0.2
    # Share of TTFT: groups of an instance that have more slack than this, and no prompt that waits, take turns with
    # each other, where no group waits for an engine.
    ample_share: float = 1.0
    # Share of TTFT: a prompt that is late waits while what its group decodes has less slack than this.
    behind_share: float = 0.2
    # Share of TTFT: a part of a long prompt waits while other groups of its engine have less slack than this, and than
    # the prompt.
    aside_share: float = 0.5
    # Share of TTFT, less than tier_share, by which a model ranks later that holds many times its part of the engines:
    # where not all can be in time, it is late before those that ask for little.
    greed_share: float = 0.49
    # Its part of the engines is what each model with requests would have; this many times it are free. With three
    # times, loads that all fit are served worse.
    greed_free: float = 5.0
    # A prompt of such a model that takes more than this share of TTFT puts its request later by so many times what it
    # takes more, up to so many TTFT: of its requests those are late that cost most. Not where admission is promised.
    cheap_share: float = 0.1
    prompt_price: float = 20.0
    price_ttfts: float = 4.0
    # Share of TTFT by which a group must be less urgent than the one that preempts it.
    preempt_share: float = 0.3
    # Times that it takes it to leave and to come back by which it must be so as well: beside others, and where it has
    # the engine for itself, which idles meanwhile.
    away_margin: float = 0.5
    idle_margin: float = 4.0
    # Times that a model's first steps on an engine, as a share of TTFT, count as utilization where a place is chosen:
    # one where it ran before is taken though it is busier by that.
    first_weight: float = 3.0
    # Seconds that any group runs where it is before it may be preempted.
    min_stay_s: float = 0.5
    # Share of an instance's memory that placing leaves free for growth.
    headroom: float = 0.028
    # Share of that headroom that growth leaves when an instance is relieved: the high-water mark of its memory. The
    # rest is for what grows while the copies run.
    relief_share: float = 0.25
    # Share of an instance's memory beside its weights that a group which has outgrown it alone leaves free for growth.
    shrink_share: float = 0.15
    # Share of an instance's memory beside its weights beyond which the KV of a group that leaves is halved: it would
    # fit nowhere. Halves are smaller batches, so nothing less is halved.
    split_share: float = 1.0
    # Share of it up to which the KV of two groups of a model may come to be one group again: less than
    # split_share, so that it does not leave in halves at once.
    unite_share: float = 0.85
    # Admission, as shares of the engines' time and multiples of TTFT. What is admitted needs no more than this share of
    # the time soon: with less left, what is preempted does not come back in time.
    soon_ttfts: float = 1.2
    soon_share: float = 0.62
    # It rises by so much a second while no request comes late, falls by so much for each that does and engine, and
    # stays within these: how little slack is enough depends on how many groups take turns on an engine.
    soon_rise: float = 0.004
    soon_fall: float = 0.06
    soon_least: float = 0.5
    soon_most: float = 0.85
    # By this much less for a request that begins a group: it costs some times as much as one that joins a batch.
    group_price: float = 0.15
    # Nor more than this in the long run: many that come at once have no need soon.
    later_ttfts: float = 2.5
    later_share: float = 0.95
    # An engine may need more time than it has for as long as an answer lasts, by this share of TTFT: what is generated
    # ahead at first is used up.
    packed_ttfts: float = 0.7
    # Share of the links' time within TTFT that loads of what waits take, beyond which no group begins.
    link_share: float = 0.6
    # Whether models that are probably asked for are loaded before they are, where that makes nothing late.
    warm: bool = False
    # Seconds between two of these loads on a node: they leave the link to others.
    warm_gap_s: float = 1.0
    # Share of an instance's memory that they leave free for growth.
    warm_reserve: float = 0.1
    # Seconds after which a model without requests loses its place in host memory to one that is read from disk.
    stale_s: float = 600.0
    # An instance of this utilization, with a deadline this near (seconds), hands a group to one whose utilization is
    # lower by the gap.
    busy_util: float = 1.0
    busy_slack_s: float = 3.0
    busy_gap: float = 0.3
    # Seconds of slack that the group must have: with less the copy itself would make it late.
    move_slack_s: float = 1.0


@dataclass(frozen=True, slots=True)
class PrismSettings:
    """Policy `prism`: KV pressure, Moore and Hodgson, idle models evicted. The paper names none of these values."""

    name: Literal["prism"] = "prism"
    # Seconds over which a model's tokens are counted: as long as an answer lasts, so that one counts whole.
    window_s: float = 30.0
    # Seconds between two looks at where all models are.
    interval_s: float = 5.0
    # Share by which KV pressure must be larger where a model is for it to move: less moves models for what is chance.
    threshold: float = 0.35
    # Share of an instance's memory that stays free for growth where a model is placed.
    headroom: float = 0.05
    # Decode steps of one turn: models of an instance take turns.
    quantum_steps: int = 8
    # Prompts, or parts of one, before a decode turn comes where there is one.
    prompts_in_a_row: int = 4
    # Tokens of one part of a prompt.
    part_tokens: int = 2048
    # Prompts of a model that are looked at, first come first served: later ones change nothing soon.
    prompts_seen: int = 64
    # Seconds between two passes over the pool at most, while a model waits for an instance; and at least.
    pass_interval_s: float = 0.2
    pass_gap_s: float = 0.05


PolicySettings = Union[PaperSettings, SlackSettings, PrismSettings]

_DEFAULTS: tuple[PolicySettings, ...] = (PaperSettings(), SlackSettings(), PrismSettings())
_BY_NAME = {settings.name: settings for settings in _DEFAULTS}


def policy_settings(name: str) -> PolicySettings:
    """A policy by name, with its defaults. Raises ConfigError for an unknown name."""
    if name not in _BY_NAME:
        raise ConfigError(f"policy.name: {name!r} is unknown; known: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Settings of the core."""

    policy: PolicySettings = field(default_factory=SlackSettings)
    # Longest wait, seconds, in the queue before the request is answered with OVERLOADED. While engines serve its model
    # it waits again until its first token is due.
    hold_s: float = 30.0
    # The same, from the arrival, while no engine serves the model because one is being started. 0: `hold_s`.
    start_s: float = 0.0
    # Seconds after the loss of an instance within which it may come back, restarted: what waits meanwhile waits another
    # hold_s, unless the pool is to have no such instance any more. A process that starts on an overloaded machine takes
    # a minute.
    restart_s: float = 120.0
    # Whether requests are refused whose first token would come too late: "none", or "feasible": at once when those who
    # are due before take longer than TTFT, and where that was too hopeful, after `bound_ttft` times TTFT in the queue.
    admission: str = "none"
    # Where both ends meet: below 2 the bound on TTFT leaves time for the prompt itself, at 1 what could still catch up
    # is refused.
    bound_ttft: float = 1.6
    # Seconds after which a client may retry after OVERLOADED.
    retry_after_s: float = 2.0
    # Sequences queued over all models before further ones are refused at once.
    max_queue: int = 4096
    # Seconds that a sequence found on an attaching instance waits for its gateway before it is closed.
    held_lease_s: float = 10.0
    # Seconds after the first event in which what was submitted again waits for the instance that may still hold it.
    reattach_grace_s: float = 1.0
    # Seconds that a lost sequence waits for its gateway to submit it again before it is forgotten.
    lost_lease_s: float = 60.0
    # Tokens of one prefill part: a turn can be amended between parts.
    prefill_chunk_tokens: int = 512
    # Failures of commands that one sequence, or one model on one instance, may meet before it is given up.
    max_failures: int = 3
    # Engines that died, or turns that failed, in a row while a sequence ran, after which it runs in turns of its own:
    # one more is its own doing, and it is given up. See core.suspects.
    suspect_after: int = 2
    # Output tokens beyond what its client had that clear a sequence of its failures: more than its prefill alone makes,
    # and than an engine makes between two reports.
    clearing_tokens: int = 16
    # Turns in a row that may bring a sequence nothing (no memory) before it is given up on its instance.
    max_hungry_turns: int = 20
    # Turns on a compute lane: the current and the next, so that it never waits for the network.
    lane_depth: int = 2
    # Latency constants where nothing better is known.
    latency: LatencyConstants = field(default_factory=LatencyConstants)
    constants: tuple[ConstantsOf, ...] = ()
    # Whether reports refine the constants.
    refine: bool = True
