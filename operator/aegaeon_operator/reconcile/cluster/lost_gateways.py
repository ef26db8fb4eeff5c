"""Gateways that their scheduler has lost while Kubernetes still sends them connections.

The kubelet of a node that is cut off reports nothing, and Kubernetes takes the node's pods out of their Services after
most of a minute. The scheduler notices within seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_operator.reconcile.cluster.facts import Json, Observed, SchedulerFacts
from aegaeon_operator.reconcile.cluster.pod_state import is_ready
from aegaeon_operator.reconcile.cluster.readiness import pods_of

# Gateways attach to a new leader within two seconds.
LOST_S = 4.0


@dataclass(slots=True)
class LostGateways:
    """Of one pool. Times are of one clock, in seconds. `since`: by name, of those that are lost just now."""

    since: dict[str, float] = field(default_factory=dict)
    _attached: set[str] = field(default_factory=set)
    _incarnation: str = ""

    def to_evict(self, observed: Observed, facts: SchedulerFacts | None, now: float) -> Json | None:
        """The pod of one that was attached and has not been for `LOST_S`, though all that Kubernetes knows is that it
        is ready; never while no other one that is ready is attached."""
        if facts is None or facts.incarnation != self._incarnation:
            self.since = {}
        if facts is None or facts.gateways is None:
            return None
        self._incarnation = facts.incarnation
        pods = {pod["metadata"]["name"]: pod for pod in pods_of(observed, "gateway") if is_ready(pod)}
        self._attached = (self._attached & pods.keys()) | facts.gateways
        lost = pods.keys() & (self._attached - facts.gateways)
        self.since = {name: self.since.get(name, now) for name in sorted(lost)}
        longest = min(self.since, key=lambda name: self.since[name], default="")
        if not longest or now - self.since[longest] < LOST_S or not pods.keys() & facts.gateways:
            return None
        return pods[longest]
