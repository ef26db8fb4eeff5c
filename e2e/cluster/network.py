"""A namespace with a bridge, and a link to it. Nothing leaves the machine; nothing outside reaches an address here."""

from __future__ import annotations

from e2e.cluster.layout import API_IP, BRIDGE, CONTROL_PLANE, HOST_IP, HOST_LINK, NETWORK
from e2e.cluster.processes import run

_PREFIX = NETWORK.prefixlen


def make() -> None:
    """The control plane's namespace holds the bridge; the machine gets an address on it."""
    run("ip", "netns", "add", CONTROL_PLANE)
    _inside("link", "set", "lo", "up")
    _inside("link", "add", BRIDGE, "type", "bridge")
    _inside("address", "add", f"{API_IP}/{_PREFIX}", "dev", BRIDGE)
    _inside("link", "set", BRIDGE, "up")
    peer = f"{HOST_LINK}-p"
    run("ip", "link", "add", HOST_LINK, "type", "veth", "peer", "name", peer, "netns", CONTROL_PLANE)
    _inside("link", "set", peer, "master", BRIDGE, "up")
    run("ip", "address", "add", f"{HOST_IP}/{_PREFIX}", "dev", HOST_LINK)
    run("ip", "link", "set", HOST_LINK, "up")


def remove() -> None:
    """Deleting the namespace deletes its links, and with the machine's link its route."""
    if CONTROL_PLANE in run("ip", "netns", "list").split():
        run("ip", "netns", "delete", CONTROL_PLANE)


def inside(namespace: str) -> tuple[str, ...]:
    """Prefix of a command that is to run in a network namespace. (`ip netns exec` would hide the cgroup mounts.)"""
    return ("nsenter", f"--net=/var/run/netns/{namespace}", "--")


def _inside(*words: str) -> None:
    run("ip", "-netns", CONTROL_PLANE, *words)
