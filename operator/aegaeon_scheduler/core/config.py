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


# Bounds of a setting in the file, as pydantic names them.
_SECONDS = {"gt": 0, "allow_inf_nan": False}
_SHARE = {"ge": 0, "le": 1}
_COUNT = {"ge": 1}


@dataclass(frozen=True, slots=True)
class PaperSettings:
    """Policy `paper`: Algorithms 1 and 2 with the paper's values where it names them."""

    name: Literal["paper"] = "paper"
    # Eq. 2-3: longest turn of a batch, seconds. The paper's value; shorter rounds, more switches.
    q_max_s: float = field(default=4.0, metadata=_SECONDS)
    # Algorithm 1: requests that may ever join one prefill group (cumulative), so that a group cannot starve others.
    max_gpsize: int = field(default=8, metadata=_COUNT)
    # Eq. 3: lower bound of the share (0 to 1) that token deadlines leave to decoding.
    alpha_floor: float = field(default=0.5, metadata=_SHARE)
    # Turn length, seconds, when no load is ahead (the formula gives 0): long enough to hide the control round trip.
    resident_quota_s: float = field(default=0.1, metadata=_SECONDS)
    # Shortest turn, seconds, where loads are so quick that the formula gives less: it outlasts the control round trip.
    min_quota_s: float = field(default=0.02, metadata=_SECONDS)
    # Steps of one turn at most: bounds the KV growth that is granted ahead. `q_max_s` is reached with steps of 2 ms.
    max_turn_steps: int = field(default=2048, metadata=_COUNT)


@dataclass(frozen=True, slots=True)
class SlackSettings:
    """Policy `slack`: earliest deadline first; the group with the most slack is preempted. Numbers that users have no
    reason to set are constants beside their rules, in core/policies/slack."""

    name: Literal["slack"] = "slack"
    # Decode steps of one turn: fewer cost control and changes of the running model, more cost urgency.
    quantum_steps: int = field(default=8, metadata=_COUNT)
    # Seconds of one turn of a long prompt: about a quantum of decode steps, so that a newcomer waits no longer for it.
    part_s: float = field(default=0.1, metadata=_SECONDS)
    # Seconds from now at which late sequences count as due: they are batched along, they do not drive the order.
    late_slack_s: float = field(default=20.0, metadata=_SECONDS)
    # Seconds that any group runs where it is before it may be preempted.
    min_stay_s: float = field(default=0.5, metadata={"ge": 0, "allow_inf_nan": False})
    # Share of an instance's memory that placing leaves free for growth.
    headroom: float = field(default=0.028, metadata=_SHARE)
    # Whether models that are probably asked for are loaded before they are, where that makes nothing late.
    warm: bool = False


@dataclass(frozen=True, slots=True)
class PrismSettings:
    """Policy `prism`: KV pressure, Moore and Hodgson, idle models evicted. The paper names none of these values."""

    name: Literal["prism"] = "prism"
    # Seconds over which a model's tokens are counted: as long as an answer lasts, so that one counts whole.
    window_s: float = field(default=30.0, metadata=_SECONDS)
    # Seconds between two looks at where all models are.
    interval_s: float = field(default=5.0, metadata=_SECONDS)
    # Share by which KV pressure must be larger where a model is for it to move: less moves models for what is chance.
    threshold: float = field(default=0.35, metadata={"ge": 0, "allow_inf_nan": False})
    # Share of an instance's memory that stays free for growth where a model is placed.
    headroom: float = field(default=0.05, metadata=_SHARE)
    # Decode steps of one turn: models of an instance take turns.
    quantum_steps: int = field(default=8, metadata=_COUNT)
    # Prompts, or parts of one, before a decode turn comes where there is one.
    prompts_in_a_row: int = field(default=4, metadata=_COUNT)
    # Tokens of one part of a prompt.
    part_tokens: int = field(default=2048, metadata=_COUNT)
    # Prompts of a model that are looked at, first come first served: later ones change nothing soon.
    prompts_seen: int = field(default=64, metadata=_COUNT)
    # Seconds between two passes over the pool at most, while a model waits for an instance; and at least.
    pass_interval_s: float = field(default=0.2, metadata=_SECONDS)
    pass_gap_s: float = field(default=0.05, metadata=_SECONDS)


PolicySettings = Union[PaperSettings, SlackSettings, PrismSettings]

_DEFAULTS: tuple[PolicySettings, ...] = (PaperSettings(), SlackSettings(), PrismSettings())
POLICIES: dict[str, PolicySettings] = {settings.name: settings for settings in _DEFAULTS}


def policy_settings(name: str) -> PolicySettings:
    """A policy by name, with its defaults. Raises ConfigError for an unknown name."""
    if name not in POLICIES:
        raise ConfigError(f"policy.name: {name!r} is unknown; known: {', '.join(POLICIES)}")
    return POLICIES[name]


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
    # Share (0 to 1) of an engine's room for KV above which no session begins there; 0: none. See cache_admission.py.
    kv_gate: float = 0.0
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
    # Tokens of a pass over prompts of a model that generates nothing; 0: as of one prompt.
    max_pooled_tokens: int = 0
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
