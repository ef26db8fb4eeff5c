"""Admission control: rejects requests that would be served too late, so that the client can retry early.

The policy judges by known quantities: what is admitted, and how long answers lasted so far; never by lengths to come.
While an engine starts for a model that is not loaded yet, its requests are held for `start_s`.
"""

from __future__ import annotations

from math import inf

from aegaeon_scheduler.core.domain import RejectCode
from aegaeon_scheduler.core.errors import ConfigError
from aegaeon_scheduler.core.policies import Policy
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Sequence

KNOWN = ("none", "feasible")


class Admission:
    """Raises ConfigError for a kind of admission that is unknown."""

    def __init__(self, pool: Pool, policy: Policy) -> None:
        if pool.config.admission not in KNOWN:
            raise ConfigError(f"admission: {pool.config.admission!r} is unknown; known: {', '.join(KNOWN)}")
        self._pool = pool
        self._policy = policy
        self._bounds = pool.config.admission == "feasible"

    def refusal(self, seq: Sequence) -> tuple[RejectCode, str] | None:
        """Why a new request is not to be taken, or None. What a client has tokens of goes on."""
        if not self._bounds or seq.prefix_tokens or self._starting(seq):
            return None
        why = self._policy.refusal(seq, self._pool.now)
        return None if why is None else (RejectCode.OVERLOADED, why)

    def until(self, seq: Sequence) -> float:
        """How long a sequence may wait: `hold_s`, or what bounds the time to a first token. Scheduler's clock.

        One whose client reads an answer already waits for as long as it takes, unless nothing that is there can go on
        with it (see Places.halved).
        """
        if seq.output_tokens and not self._halved(seq):
            return inf
        config = self._pool.config
        held = self._pool.now + config.hold_s
        if self._starting(seq):
            return max(held, seq.arrival + config.start_s)
        if not self._bounds or seq.output_tokens:
            return held
        return min(held, seq.arrival + config.bound_ttft * seq.model.config.slo.ttft_s)

    def once_more(self, seq: Sequence) -> float | None:
        """Until when a sequence whose wait is over waits on; None: no longer. While engines serve its model that is
        until its first token is due, which may be later than `hold_s`."""
        due = self._due(seq)
        if not seq.output_tokens and self._pool.now < due and self._pool.fleet.of(seq.model).served:
            return min(due, self._pool.now + self._pool.config.hold_s)
        return self.until(seq) if self._may_wait_on(seq) else None

    def _may_wait_on(self, seq: Sequence) -> bool:
        """True when its engine is being started, or was lost and may return; or its client reads an answer that an
        engine can continue."""
        if self._starting(seq):
            return self._pool.now < seq.arrival + self._pool.config.start_s
        if self._halved(seq):
            return False
        if seq.output_tokens:
            return True
        return not self._bounds and self._pool.awaits_return()

    def _due(self, seq: Sequence) -> float:
        """Until when a first token is in time, and not later than what bounds it."""
        ttft_s = seq.model.config.slo.ttft_s
        due = seq.promised_from + ttft_s
        return min(due, seq.arrival + self._pool.config.bound_ttft * ttft_s) if self._bounds else due

    def _starting(self, seq: Sequence) -> bool:
        """True when nothing serves its model, and an engine is started for the waiting requests."""
        return bool(self._pool.config.start_s) and not self._pool.fleet.of(seq.model).served

    def _halved(self, seq: Sequence) -> bool:
        return self._pool.fleet.of(seq.model).halved
