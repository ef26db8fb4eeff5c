"""Namespaces, a bridge and routes. Nothing leaves the machine; nothing outside reaches an address here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.layout import Layout, Node
from e2e.cluster.processes import run


def make(layout: Layout) -> None:
    """All of it. The control plane's namespace holds the bridge."""
    _namespace(layout.control_plane)
    bridge = _bridge(layout)
    _ip(layout.control_plane, "link", "add", bridge, "type", "bridge")
    _add_address(layout, layout.control_plane, layout.api_ip, bridge)
    _ip(layout.control_plane, "link", "set", bridge, "up")
    _join_machine(layout)
    for node in layout.nodes:
        _join_node(layout, node)
    if layout.nodes:
        _route(layout)


def remove(layout: Layout) -> None:
    """Deleting a namespace deletes its links, and with the machine's link its routes."""
    there = set(run("ip", "netns", "list").split())
    for name in (*(node.namespace for node in layout.nodes), layout.control_plane):
        if name in there:
            run("ip", "netns", "delete", name)


def inside(namespace: str) -> tuple[str, ...]:
    """Prefix of a command that is to run in a network namespace. (`ip netns exec` would hide the cgroup mounts.)"""
    return ("nsenter", f"--net=/var/run/netns/{namespace}", "--")


def _join_machine(layout: Layout) -> None:
    link, peer = f"{layout.prefix}-host", f"{layout.prefix}-hp"
    run("ip", "link", "add", link, "type", "veth", "peer", "name", peer, "netns", layout.control_plane)
    _ip(layout.control_plane, "link", "set", peer, "master", _bridge(layout), "up")
    _add_address(layout, None, layout.machine_ip, link)
    run("ip", "link", "set", link, "up")


def _join_node(layout: Layout, node: Node) -> None:
    _namespace(node.namespace)
    _ip(layout.control_plane, *f"link add {node.link} type veth peer name eth0 netns {node.namespace}".split())
    _ip(layout.control_plane, "link", "set", node.link, "master", _bridge(layout), "up")
    _add_address(layout, node.namespace, node.address, "eth0")
    _ip(node.namespace, "link", "set", "eth0", "up")
    _ip(node.namespace, "route", "add", "default", "via", layout.api_ip)


def _route(layout: Layout) -> None:
    """Pods are reached through their node; services through the first one, whose kube-proxy translates them."""
    family = "ipv6.conf.all.forwarding" if layout.ipv6 else "ipv4.ip_forward"
    for forwarder in (layout.control_plane, *(node.namespace for node in layout.nodes)):
        run(*inside(forwarder), "sysctl", "-qw", f"net.{family}=1")
    for node in layout.nodes:
        others = [other.namespace for other in layout.nodes if other != node]
        for namespace in (None, layout.control_plane, *others):
            _ip(namespace, "route", "add", str(node.pods), "via", node.address)
    for namespace in (None, layout.control_plane):
        _ip(namespace, "route", "add", str(layout.services), "via", layout.nodes[0].address)


def _bridge(layout: Layout) -> str:
    return f"{layout.prefix}-br"


def _namespace(name: str) -> None:
    run("ip", "netns", "add", name)
    _ip(name, "link", "set", "lo", "up")


def _add_address(layout: Layout, namespace: str | None, address: str, link: str) -> None:
    """At once: who else could have it?"""
    words = ["address", "add", f"{address}/{layout.network.prefixlen}", "dev", link]
    _ip(namespace, *words, *(["nodad"] if layout.ipv6 else []))


def _ip(namespace: str | None, *words: str) -> None:
    run("ip", *(("-netns", namespace) if namespace else ()), *words)


@contextmanager
def cut(layout: Layout, node: Node) -> Iterator[None]:
    """Partition a node from the network for the time of a `with`: nothing closes its connections."""
    _ip(layout.control_plane, "link", "set", node.link, "down")
    try:
        yield
    finally:
        _ip(layout.control_plane, "link", "set", node.link, "up")


@contextmanager
def lossy(node: Node, percent: int) -> Iterator[None]:
    """A node whose link loses packets, in both directions, for the time of a `with`. (Kernels may lack netem.)"""
    table = f"inet lossy_{node.name}"
    drop = f"numgen random mod 100 < {percent} drop"
    rules = (
        f"table {table} {{\n"
        f'  chain received {{ type filter hook prerouting priority raw; iifname "eth0" {drop}; }}\n'
        f'  chain sent {{ type filter hook postrouting priority srcnat + 10; oifname "eth0" {drop}; }}\n'
        "}\n"
    )
    run(*inside(node.namespace), "nft", "-f", "-", stdin=rules)
    try:
        yield
    finally:
        run(*inside(node.namespace), "nft", "delete", "table", *table.split())
