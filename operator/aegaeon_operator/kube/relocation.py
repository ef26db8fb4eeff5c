"""Moves pods off a node that they share with their counterpart: evicts them when another node can take them.

Nodes are listed only while there is such a pod. Kubernetes schedules the replacement; if that is on the same node
again, for lack of resources elsewhere or by hand, the next move waits twice as long.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import NODES, Cluster
from aegaeon_operator.reconcile.cluster.facts import Json
from aegaeon_operator.reconcile.cluster.node_fit import takes

_log = logging.getLogger(__name__)
# Time that a node must be free before a move; it doubles after each move of the last two hours.
FREE_S, LONGEST_S = 60.0, 3600.0
# Period of lists of nodes; the state of a pod expires when it was not considered for this time.
_LIST_S, _FORGET_S = 20.0, 60.0
# Minimum time between two moves of any pods.
_APART_S = 10.0


@dataclass(slots=True)
class _Candidate:
    """State of a role whose pod may be moved. `free`: nodes that can take it, with the time since when."""

    free: dict[str, float] = field(default_factory=dict)
    looked: float = -math.inf
    moved: float = -math.inf
    wait_s: float = FREE_S


class Relocations:
    """The moves of an operator, one at a time. `clock` is monotonic, in seconds."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._candidates: dict[str, _Candidate] = {}
        self._nodes: list[Json] = []
        self._listed = self._moved = -math.inf

    async def consider(self, role: str, pod: Json) -> str:
        """Evict the pod if possible; return why it stays, as a part of a sentence, or "" when it was evicted.
        `role`: the pod's role, under which its state is kept. Raises KubeError.
        """
        try:
            nodes = await self._list()
        except KubeError as error:
            if error.is_unavailable:
                raise
            return f"it cannot be moved, since the operator may not list nodes ({error})"
        node_name, now = pod["spec"]["nodeName"], self._clock()
        names = [node["metadata"]["name"] for node in nodes if takes(node, pod)]
        state = self._updated(role, [name for name in names if name != node_name], now)
        if not state.free:
            return "no other node can take it"
        to, since = min(state.free.items(), key=lambda item: (item[1], item[0]))
        wait_s = state.wait_s if now - state.moved < 2 * LONGEST_S else FREE_S
        if now - since < wait_s or now - self._moved < _APART_S:
            return f"it will be moved when node {to} has been free for {round(wait_s)} s"
        self._moved = now  # before the await, so that no other move starts
        if not await self._cluster.evict(pod):
            return "a disruption budget forbids its eviction"
        state.moved, state.wait_s = now, min(2 * wait_s, LONGEST_S)
        state.free.clear()
        _log.info("evicted pod %s/%s from node %s: node %s is free", *_name(pod), node_name, to)
        return ""

    def _updated(self, role: str, free: list[str], now: float) -> _Candidate:
        state = self._candidates.setdefault(role, _Candidate())
        known = state.free if now - state.looked < _FORGET_S else {}
        state.free = {name: known.get(name, now) for name in free}
        state.looked = now
        return state

    async def _list(self) -> list[Json]:
        if self._clock() - self._listed >= _LIST_S:
            self._nodes = (await self._cluster.list(NODES, None)).items
            self._listed = self._clock()
        return self._nodes


def _name(pod: Json) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]
