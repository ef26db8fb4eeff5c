"""Faults of what pods run on: nodes' links and shared memory, disks, the API server, the server of models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from e2e.chaos.errors import MissedError
from e2e.chaos.on_models import served, with_qwen3
from e2e.chaos.schedule import Drawn
from e2e.chaos.world import World
from e2e.cluster import network, node
from e2e.cluster.control_plane import api_server_away
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout, Node

# The disk tier of every node, small enough to be filled.
DISK, DISK_BYTES = "/var/lib/aegaeon/disk", 64 << 20
_SHARED = "/dev/shm"
_PAGE = 4096
_LOSS_PERCENT = (3, 15)
_editions = count(1)


def make_disks(layout: Layout) -> None:
    """A small disk on every node, before a pool uses it. It ends with the node."""
    for one in layout.nodes:
        folder = node.root_of(layout, one) / DISK.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.path.ismount(folder):
            node.mount(layout, one, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", DISK)


@contextmanager
def cut(world: World, drawn: Drawn) -> Iterator[str]:
    """A node's link is down: nothing closes the connections of what runs there."""
    one = drawn.choose(world.layout.nodes)
    world.harm(world.on(one))
    with network.cut(world.layout, one):
        yield one.name


@contextmanager
def loss(world: World, drawn: Drawn) -> Iterator[str]:
    """A node's link loses packets."""
    one = drawn.choose(world.layout.nodes)
    percent = round(drawn.between(*_LOSS_PERCENT))
    with network.lossy(one, percent):
        yield f"{one.name}, {percent} %"


@contextmanager
def api_away(world: World, drawn: Drawn) -> Iterator[str]:
    with api_server_away(world.layout):
        yield "API server"


@contextmanager
def shared_memory_full(world: World, drawn: Drawn) -> Iterator[str]:
    """A node's /dev/shm has no room, and an engine there starts anew."""
    pod = world.pick("engine", drawn)
    with _full(world.layout, world.node(pod), _SHARED):
        world.end(pod)
        world.kubectl("delete", "pod", pod.name, "--grace-period=0", "--force", "--wait=false")
        yield f"{pod.node}, {pod.name}"


@contextmanager
def disk_full(world: World, drawn: Drawn) -> Iterator[str]:
    """The disk of a node has no room for a model that its engines should fetch."""
    one = drawn.choose(world.layout.nodes)
    with with_qwen3(world, world.web.source(f"full{next(_editions)}", "qwen3")):
        with _full(world.layout, one, DISK):
            yield one.name
        served(world, "qwen3")


@contextmanager
def source_away(world: World, drawn: Drawn) -> Iterator[str]:
    """The server of a new model does not serve."""
    world.web.out_of_order = True
    try:
        with with_qwen3(world, world.web.source(f"away{next(_editions)}", "qwen3")):
            yield world.web.url
            world.web.out_of_order = False
            served(world, "qwen3")
    finally:
        world.web.out_of_order = False


@contextmanager
def _full(layout: Layout, one: Node, folder: str) -> Iterator[None]:
    """Not filled but made as small as what is in it: nothing has to be written for that."""
    there = node.root_of(layout, one) / folder.lstrip("/")
    size = os.statvfs(there)
    whole = size.f_blocks * size.f_frsize
    try:
        _shrink(layout, one, folder)
        yield
    finally:
        node.mount(layout, one, "-o", f"remount,size={whole}", folder)


def _shrink(layout: Layout, one: Node, folder: str) -> None:
    """Processes may write meanwhile, and the kernel takes no size below what is used."""
    for spare in (0, 64, 1024):
        size = os.statvfs(node.root_of(layout, one) / folder.lstrip("/"))
        used = (size.f_blocks - size.f_bfree) * size.f_frsize
        try:
            node.mount(layout, one, "-o", f"remount,size={used + (1 + spare) * _PAGE}", folder)
        except ClusterError:
            continue
        return
    raise MissedError(f"{folder} of {one.name} grows")
