"""Gateways that their scheduler has lost while Kubernetes still sends them connections.

The kubelet of a node that is cut off reports nothing, and Kubernetes takes the node's pods out of their Services after
most of a minute. The scheduler notices within seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_operator.reconcile.cluster.facts import Json, Observed, SchedulerFacts
from aegaeon_operator.reconcile.cluster.pod_state import is_ready
from aegaeon_operator.reconcile.cluster.readiness import pods_of

# One that is ready has been attached: its readiness probe asks for the catalog. A lost stream is opened anew within
# LOST_S. For a new leader, an attempt at the old address and a pause may come first.
LOST_S, ATTACH_S = 4.0, 8.0


@dataclass(slots=True)
class LostGateways:
    """Of one pool. Times are of one clock, in seconds. `since`: by name, of those that are lost just now."""

    since: dict[str, float] = field(default_factory=dict)
    _incarnation: str = ""
    _wait_until: float = 0.0

    def to_evict(self, observed: Observed, facts: SchedulerFacts | None, now: float) -> Json | None:
        """The pod of one that has not been attached for `LOST_S`, and for `ATTACH_S` of a new leader, though all that
        Kubernetes knows is that it is ready; never while no other one that is ready is attached."""
        if facts is None or facts.incarnation != self._incarnation:
            self.since = {}
        if facts is None or facts.gateways is None:
            return None
        if facts.incarnation != self._incarnation:
            self._incarnation, self._wait_until = facts.incarnation, now + ATTACH_S
        pods = {pod["metadata"]["name"]: pod for pod in pods_of(observed, "gateway") if is_ready(pod)}
        self.since = {name: self.since.get(name, now) for name in sorted(pods.keys() - facts.gateways)}
        longest = min(self.since, key=lambda name: self.since[name], default="")
        if not longest or now < max(self.since[longest] + LOST_S, self._wait_until) or not pods.keys() & facts.gateways:
            return None
        return pods[longest]
