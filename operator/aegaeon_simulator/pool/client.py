"""A client of the pool in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import ALIKE, ModelName, SeqId, Terms
from aegaeon_simulator.workload.content import Content


@dataclass
class Client:
    """One request with one choice, as its gateway sees it. `times`: seconds since arrival of each token."""

    seq: SeqId
    model: ModelName
    prompt_tokens: int
    length: int
    max_tokens: int
    arrival: float
    defer_s: float = 0.0
    tenant: str = ""
    priority: int = 0
    adapter: str = ""
    terms: Terms = ALIKE
    content: Content | None = None
    epoch: int = 1
    times: list[float] = field(default_factory=list)
    accepted: int = 0
    ends: int = 0
    finished: bool = False
    cancelled: bool = False
    rejected: cmd.Reject | None = None
    rejected_at: float = 0.0
    ended: Callable[[], None] = lambda: None  # its answer is there, or it was refused

    @property
    def open(self) -> bool:
        """Still waiting for something."""
        return not (self.finished or self.cancelled or self.rejected is not None)
