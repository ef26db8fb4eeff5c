"""Names, addresses and folders of a cluster: every other module takes them from here.

The control plane and each node have a network namespace of their own, joined by a bridge in the control plane's. The
machine itself has an address on that bridge, so kubectl, helm and clients run without entering any namespace. Several
clusters can live on a machine, each with a number of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from e2e.cluster.errors import ClusterError

DOMAIN = "cluster.local"
# Each cluster takes 256 addresses for its machines and 4,096 for services and pods each.
_MACHINES = IPv4Network("10.231.0.0/16")
_PODS = IPv4Network("10.232.0.0/16")
_SERVICES = IPv4Network("10.233.0.0/16")
CLUSTERS = 16


def cache_folder() -> Path:
    """Where binaries and images are kept between clusters."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aegaeon" / "e2e"


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a cluster."""

    name: str
    namespace: str
    address: str
    pods: IPv4Network
    folder: Path
    link: str  # its network interface in the control plane's namespace

    @property
    def socket(self) -> Path:
        """containerd's."""
        return self.folder / "containerd.sock"

    def on_disk(self, path: str) -> Path:
        """Where a folder that the node has of its own lies on this machine."""
        return self.folder / "own" / path.removeprefix("/")


@dataclass(frozen=True, slots=True)
class Layout:
    """Addresses, names and folders of one cluster. `number` (below CLUSTERS) tells it from others of the machine."""

    root: Path
    number: int = 0
    node_count: int = 0

    @property
    def network(self) -> IPv4Network:
        """Of the control plane, the nodes and the machine."""
        return _slice(_MACHINES, 24, self.number)

    @property
    def services(self) -> IPv4Network:
        return _slice(_SERVICES, 20, self.number)

    @property
    def pods(self) -> IPv4Network:
        return _slice(_PODS, 20, self.number)

    @property
    def api_ip(self) -> str:
        return str(self.network[1])

    @property
    def api_url(self) -> str:
        return f"https://{self.api_ip}:6443"

    @property
    def machine_ip(self) -> str:
        """Of the machine that all this runs on."""
        return str(self.network[254])

    @property
    def dns_ip(self) -> str:
        return str(self.services[10])

    @property
    def prefix(self) -> str:
        """Of names of namespaces and links, which may have 15 characters."""
        return f"aegaeon{self.number}"

    @property
    def control_plane(self) -> str:
        """The namespace."""
        return f"{self.prefix}-cp"

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._node(index) for index in range(1, self.node_count + 1))

    @property
    def binaries(self) -> Path:
        return cache_folder() / "bin"

    @property
    def images(self) -> Path:
        return cache_folder() / "images"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def processes(self) -> Path:
        return self.root / "processes"

    @property
    def kubeconfig(self) -> Path:
        """For the person who made the cluster: all rights."""
        return self.root / "kubeconfig"

    def kubeconfig_of(self, who: str) -> Path:
        """For a part of the cluster."""
        return self.pki / f"{who}.kubeconfig"

    def _node(self, index: int) -> Node:
        return Node(
            name=f"node{index}",
            namespace=f"{self.prefix}-n{index}",
            address=str(self.network[10 + index]),
            pods=_slice(self.pods, 24, index),
            folder=self.root / f"node{index}",
            link=f"{self.prefix}-l{index}",
        )


def default_layout(node_count: int = 0) -> Layout:
    """The cluster that commands and tests mean: number 0, or the one in AEGAEON_CLUSTER. Raises ClusterError."""
    chosen = os.environ.get("AEGAEON_CLUSTER", "0")
    if not chosen.isdecimal() or int(chosen) >= CLUSTERS:
        raise ClusterError(f"AEGAEON_CLUSTER is {chosen!r}; a machine has clusters 0 to {CLUSTERS - 1}")
    number = int(chosen)
    root = Path("/var/lib/aegaeon-e2e" + (f"-{number}" if number else ""))
    return Layout(root, number, node_count or _nodes_there(root))


def _nodes_there(root: Path) -> int:
    return len([child for child in root.glob("node*") if child.is_dir()])


def _slice(whole: IPv4Network, prefix: int, index: int) -> IPv4Network:
    return list(whole.subnets(new_prefix=prefix))[index]
