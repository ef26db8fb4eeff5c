"""Nodes as people maintain them, and the one that is lost when that is over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.chaos.on_pods import DRAIN, restart
from e2e.chaos.schedule import Drawn
from e2e.chaos.world import World
from e2e.cluster import network
from e2e.cluster.layout import Node

_CONTROL = ("scheduler", "standby", "gateway", "picker", "operator", "redis")
# The operator moves what stands by when a node has been free for a minute, one pod after the other.
_APART_S = 300.0


@contextmanager
def drain_then_cut(world: World, drawn: Drawn) -> Iterator[str]:
    """Drained and taken back as docs/guides/operations.md says, gateways and engines spread again; once the pool is
    redundant the link of the node with most control pods is down."""
    drained = drawn.choose(world.layout.nodes)
    try:
        world.kubectl("drain", drained.name, *DRAIN)
    finally:
        world.kubectl("uncordon", drained.name)
    for kind, component in (("deployment", "gateway"), ("statefulset", "engine")):
        with restart(kind, component, world, drawn):
            pass
    world.until("nothing that must survive is on one node", lambda: _redundant(world), _APART_S)
    lost = _fullest(world, drawn)
    gateways = {pod.url for pod in world.on(lost) if pod.component == "gateway"}
    world.harm(world.on(lost))
    with network.cut(world.layout, lost):
        since = time.monotonic()
        yield f"{drained.name}, then {lost.name}"
        sent = (each.sent - since for url, each in world.load.by_url if url in gateways and each.sent > since)
        world.late_connects.append(max(sent, default=0.0))


def _redundant(world: World) -> bool:
    if world.missing() or world.view.condition("gpupools", world.pool.name, "Redundant").get("status") != "True":
        return False
    return all(len({pod.node for pod in world.view.of(name)}) > 1 for name in ("operator", "engine"))


def _fullest(world: World, drawn: Drawn) -> Node:
    """The node with most control pods; the draw says which of several."""
    count = Counter(pod.node for pod in world.view.pods() if pod.component in _CONTROL and not pod.ending)
    most = max(count.values())
    return world.view.node(drawn.choose(sorted(name for name in count if count[name] == most)))
