"""Gateways that lost their scheduler while their Service still sends them connections.

Kubernetes removes the pods of a disconnected node from their Services after most of a minute; the scheduler notices
within seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from aegaeon_operator.reconcile.cluster.facts import Json, Observed, SchedulerFacts
from aegaeon_operator.reconcile.cluster.pod_state import is_ready
from aegaeon_operator.reconcile.cluster.readiness import pods_of

# A ready gateway has been attached, since its readiness probe needs the catalog. It reopens a lost stream within
# LOST_S; for a new leader an attempt at the old address and a pause may come first.
LOST_S, ATTACH_S = 4.0, 8.0


@dataclass(slots=True)
class LostGateways:
    """The lost gateways of a pool. Times are seconds of one clock. `since`: start of the loss by pod name."""

    since: dict[str, float] = field(default_factory=dict)
    _incarnation: str = ""
    _wait_until: float = 0.0

    def to_evict(self, observed: Observed, facts: SchedulerFacts | None, now: float) -> Json | None:
        """Return the pod of a ready gateway that has not been attached for `LOST_S`, nor in the first `ATTACH_S` of a
        new leader; None while no other ready gateway is attached.

        The time of a leader that this operator saw begin is counted by its own clock.
        """
        if facts is None or facts.incarnation != self._incarnation:
            self.since = {}
        if facts is None or facts.gateways is None:
            return None
        if facts.incarnation != self._incarnation:
            left_s = ATTACH_S if self._incarnation else _attaching_s(facts.term, observed.now)
            self._incarnation, self._wait_until = facts.incarnation, now + left_s
        pods = {pod["metadata"]["name"]: pod for pod in pods_of(observed, "gateway") if is_ready(pod)}
        self.since = {name: self.since.get(name, now) for name in sorted(pods.keys() - facts.gateways)}
        longest = min(self.since, key=lambda name: self.since[name], default="")
        if not longest or now < max(self.since[longest] + LOST_S, self._wait_until) or not pods.keys() & facts.gateways:
            return None
        return pods[longest]


def _attaching_s(term: int, now: datetime) -> float:
    """Return what is left of a leader's first `ATTACH_S`. An operator that takes over meets a leader that may have led
    for long: its term began at so many microseconds since 1970, by the leader's clock; 0: without a Lease."""
    led_s = now.timestamp() - term / 1e6 if term else 0.0
    return min(ATTACH_S, max(0.0, ATTACH_S - led_s))
