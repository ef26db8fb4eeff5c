"""Pods that should be on another node than the one that they share with another: evicted once a node is free for them.

Nodes are listed only while there is such a pod. Kubernetes places what comes in its place; where that comes back to the
same node (there is no room elsewhere, or it is brought back by hand) the next move waits twice as long.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import NODES, Cluster
from aegaeon_operator.reconcile.cluster.facts import Json
from aegaeon_operator.reconcile.cluster.placing import takes

_log = logging.getLogger(__name__)
# A node must have been free for so long, longer after each move of the last two hours.
FREE_S, LONGEST_S = 60.0, 3600.0
# Nodes are listed so often; what was known of a pod that was not asked about for longer counts no more.
_LIST_S, _FORGET_S = 20.0, 60.0
# Between two moves of any pods.
_APART_S = 10.0


@dataclass(slots=True)
class _Post:
    """What a pod is there for, whichever pod it is. `free`: nodes that would take it, each with since when."""

    free: dict[str, float] = field(default_factory=dict)
    looked: float = -math.inf
    moved: float = -math.inf
    wait_s: float = FREE_S


class Moves:
    """Of one operator: one move at a time. `clock` is monotonic, in seconds."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._posts: dict[str, _Post] = {}
        self._nodes: list[Json] = []
        self._listed = self._moved = -math.inf

    async def consider(self, post: str, pod: Json) -> str:
        """Evict the pod if it is time; returns what keeps it where it is, as a part of a sentence, empty when it goes.

        `post` names what it is there for. Raises KubeError.
        """
        try:
            nodes = await self._list()
        except KubeError as error:
            if error.is_unavailable:
                raise
            return f"it is not moved, since the operator may not list nodes ({error})"
        node_name, now = pod["spec"]["nodeName"], self._clock()
        names = [node["metadata"]["name"] for node in nodes if takes(node, pod)]
        state = self._looked(post, [name for name in names if name != node_name], now)
        if not state.free:
            return "no other node would take it"
        to, since = min(state.free.items(), key=lambda item: (item[1], item[0]))
        wait_s = state.wait_s if now - state.moved < 2 * LONGEST_S else FREE_S
        if now - since < wait_s or now - self._moved < _APART_S:
            return f"it is moved when node {to} has been free for {round(wait_s)} s"
        self._moved = now  # before others get their turn
        if not await self._cluster.evict(pod):
            return "a disruption budget keeps it"
        state.moved, state.wait_s = now, min(2 * wait_s, LONGEST_S)
        state.free.clear()
        _log.info("Pod %s/%s is evicted from %s: node %s is free", *_name(pod), node_name, to)
        return ""

    def _looked(self, post: str, free: list[str], now: float) -> _Post:
        state = self._posts.setdefault(post, _Post())
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
