"""The settings of one run: policy, split of the devices, objective."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from aegaeon_scheduler.core.config import PolicySettings, SchedulerConfig
from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.errors import SettingsError

PRODUCTION = ("slack", "paper", "prism")  # the scheduler's own core
SPLIT = ("paper", "paper-artifact")  # prefill and decode devices, unless `unified` is given
BASELINES = (
    "dedicated", "muxserve", "muxserve-memory", "serverlessllm", "serverlessllm-plus", "serverlessllm-fair", "prewarm",
    "vllm-sleep",
)  # fmt: skip
POLICIES = (*PRODUCTION, "paper-artifact", *BASELINES)


@dataclass(frozen=True, slots=True)
class Split:
    """Devices by role."""

    prefill: int = 0
    decode: int = 0
    unified: int = 0

    @property
    def total(self) -> int:
        """All devices."""
        return self.prefill + self.decode + self.unified


HOLD_S = SchedulerConfig().hold_s  # a simulated request waits as long as one of a pool with default settings


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. `slo` is the objective of all models, unless `slos` gives each its own; `drain_s` is how long it goes on
    after the last arrival. `tuned`: a production policy's settings, unless they are its defaults; `awake_s`: how long a
    model of `vllm-sleep` stays while others wait, unless it is a quarter of TTFT."""

    policy: str
    split: Split
    slo: Slo
    drain_s: float = 600.0
    delay_s: float = 0.0005  # between scheduler and devices, one way
    admission: str = "none"  # of policies that run on the scheduler's core
    kv_gate: float = 0.0  # share of an engine's room for KV above which no new request begins there; 0: none
    slos: tuple[Slo, ...] = ()
    warm: bool = False  # of policy slack: models are loaded before they are asked for
    tuned: PolicySettings | None = None
    awake_s: float = 0.0
    hold_s: float = HOLD_S

    def slo_of(self, model: int) -> Slo:
        """The objective of the model of this number."""
        return self.slos[model] if self.slos else self.slo

    def check(self) -> None:
        """Raises SettingsError."""
        if self.policy not in POLICIES:
            raise SettingsError(f"--policy {self.policy} is unknown; known are {', '.join(POLICIES)}")
        split = self.split
        if min(split.prefill, split.decode, split.unified) < 0 or split.total < 1:
            raise SettingsError(
                f"--prefill {split.prefill}, --decode {split.decode}, --unified {split.unified}: no GPU is left to run "
                f"on; give --unified of at least 1, or --prefill and --decode"
            )
        if self.policy == "paper-artifact" and not (split.prefill and split.decode):
            raise SettingsError("policy paper-artifact needs both roles; give --prefill and --decode of at least 1")
        if not split.unified and not (split.prefill and split.decode) and self.policy in PRODUCTION:
            raise SettingsError(
                f"--prefill {split.prefill}, --decode {split.decode}: one role is missing; give both of at least 1, "
                f"or --unified"
            )
        if not (0 < self.slo.ttft_s < inf and 0 < self.slo.tbt_s < inf):
            raise SettingsError(
                f"the objective is TTFT {self.slo.ttft_s:g} s, TBT {self.slo.tbt_s:g} s; give both more than 0"
            )
        if not 0 <= self.drain_s < inf:
            raise SettingsError(f"--drain {self.drain_s:g}: seconds after the last arrival, 0 or more")


def default_split(policy: str) -> Split:
    """The paper's 16 devices: six and ten for policies with roles, all alike for the others."""
    return Split(prefill=6, decode=10) if policy in SPLIT else Split(unified=16)
