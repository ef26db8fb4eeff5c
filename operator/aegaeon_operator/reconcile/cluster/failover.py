"""A second scheduler for a pool that has no standby, while the first one is silent.

Kubernetes gives a node up only after 50 s, and keeps its pods `Ready` until then. The operator hears sooner that a
scheduler does not answer. It need not know why: a second one takes over if the Lease of the first is not renewed, and
else waits. A scheduler whose pod is not `Ready` any more is the kubelet's to restart.

The leader stays, since every change of leader is a stall of seconds for what is served: a first scheduler that comes
back stands by, and the second goes once the first leads again.
"""

from __future__ import annotations

from dataclasses import dataclass

# A scheduler of a ready pod that has not answered for so long is taken for lost; one that leads for so long is back.
SILENT_S, BACK_S = 8.0, 30.0


@dataclass(slots=True)
class Failover:
    """Remembers since when the first scheduler of a pool has been silent, and has led. Times are of one clock."""

    answers: bool | None = None
    since: float = 0.0
    leads: bool = False
    leads_since: float = 0.0

    def heard(self, answers: bool | None, leads: bool, now: float) -> None:
        """What a look found: its pod is ready and it answers, or does not; None: no pod is ready, as at a start."""
        if answers is not self.answers:
            self.answers, self.since = answers, now
        if leads is not self.leads:
            self.leads, self.leads_since = leads, now

    def wanted(self, there: bool, now: float) -> bool:
        """Should a second one run? `there`: one was asked for last, so it stays until the first leads for certain."""
        if there:
            return not self.leads or now - self.leads_since < BACK_S
        return self.answers is False and now - self.since >= SILENT_S
