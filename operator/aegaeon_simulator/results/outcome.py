"""Results of a run: every request with the times of its tokens, and the use of the devices' seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.slo import Attainment, attainment
from aegaeon_simulator.results.usage import DeviceUsage

SloOf = Callable[[int], Slo]


@dataclass(slots=True)
class Served:
    """One request: seconds from its arrival to each token (`length` were due), or to its refusal (`refused_s`). Its
    tokens are due `defer_s` later than the objective says."""

    model: int
    length: int
    arrival_s: float
    times: list[float] = field(default_factory=list)
    refused_s: float | None = None
    tenant: str = ""
    defer_s: float = 0.0
    session: str = ""

    @property
    def refused(self) -> bool:
        """True when the request was refused."""
        return self.refused_s is not None

    def due(self, slo: Slo) -> Slo:
        """The objective that it is held to, of its model's."""
        return replace(slo, ttft_s=slo.ttft_s + self.defer_s) if self.defer_s else slo

    @property
    def finished(self) -> bool:
        """True when every token was delivered."""
        return len(self.times) >= self.length


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run of `gpus` devices over `span_s` seconds. `events`: how many the run took; `least_tokens`: of
    prompts that were answered, with a prefix cache without limits for all engines; None: no prompts begin alike."""

    requests: list[Served]
    usage: list[DeviceUsage]
    span_s: float
    events: int
    least_tokens: int | None = None

    def attainment(self, slo: Slo) -> Attainment:
        """All three forms over every request offered."""
        return attainment((r.times, r.due(slo), r.length) for r in self.requests)
