"""Starts a second scheduler for a pool without standby while the first one does not answer.

Kubernetes marks a lost node only after 50 s, and its pods stay `Ready` until then. The operator notices earlier that a
scheduler does not answer, whatever the cause: a second one takes over if the first does not renew its Lease, and waits
otherwise. The kubelet restarts a scheduler whose pod is not `Ready`.
A change of leader stalls requests for seconds, so the leader stays: a first scheduler that returns is the standby, and
the second is removed when the first leads again.
"""

from __future__ import annotations

from dataclasses import dataclass

# A scheduler with a ready pod that does not answer for SILENT_S counts as lost; after BACK_S as leader it is back.
SILENT_S, BACK_S = 8.0, 30.0


@dataclass(slots=True)
class Failover:
    """Times since which the first scheduler of a pool answers or not, and leads or not. Times are of one clock."""

    answers: bool | None = None
    since: float = 0.0
    leads: bool = False
    leads_since: float = 0.0

    def observe(self, answers: bool | None, leads: bool, now: float) -> None:
        """Record whether the first scheduler answers; None: its pod is not ready, as at a start."""
        if answers is not self.answers:
            self.answers, self.since = answers, now
        if leads is not self.leads:
            self.leads, self.leads_since = leads, now

    def needs_second(self, running: bool, now: float) -> bool:
        """Return whether a second scheduler should run; a running one stays until the first leads for `BACK_S`."""
        if running:
            return not self.leads or now - self.leads_since < BACK_S
        return self.answers is False and now - self.since >= SILENT_S
