"""Names, addresses and folders of a cluster: every other module takes them from here.

The control plane and each node have a network namespace of their own, joined by a bridge in the control plane's. The
machine itself has an address on that bridge, so kubectl, helm and clients run without entering any namespace. Several
clusters can live on a machine, each with a number of its own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from e2e.cluster.errors import ClusterError

DOMAIN = "cluster.local"
# Each cluster takes 256 addresses for its machines and 4,096 for services and pods each.
_MACHINES = IPv4Network("10.231.0.0/16")
_PODS = IPv4Network("10.232.0.0/16")
_SERVICES = IPv4Network("10.233.0.0/16")
# The same of clusters that have IPv6 alone. An API server takes no more than 20 bits for its services.
_MACHINES_V6 = IPv6Network("fd00:ae:0::/56")
_PODS_V6 = IPv6Network("fd00:ae:1::/48")
_SERVICES_V6 = IPv6Network("fd00:ae:2::/104")
CLUSTERS = 16
Network = IPv4Network | IPv6Network
# In the folder of such a cluster.
_MARK_V6 = "ipv6"


def url(host: str, port: int, scheme: str = "http") -> str:
    """An address of IPv6 has brackets there."""
    return f"{scheme}://{authority(host, port)}"


def authority(host: str, port: int) -> str:
    """Host and port, as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
    pods: Network
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
    """Addresses, names and folders of one cluster. `number` (below CLUSTERS) tells it from others of the machine;
    `ipv6`: it has addresses of IPv6 alone."""

    root: Path
    number: int = 0
    node_count: int = 0
    ipv6: bool = False

    @property
    def network(self) -> Network:
        """Of the control plane, the nodes and the machine."""
        return _slice(_MACHINES_V6, 64, self.number) if self.ipv6 else _slice(_MACHINES, 24, self.number)

    @property
    def services(self) -> Network:
        return _slice(_SERVICES_V6, 112, self.number) if self.ipv6 else _slice(_SERVICES, 20, self.number)

    @property
    def pods(self) -> Network:
        return _slice(_PODS_V6, 56, self.number) if self.ipv6 else _slice(_PODS, 20, self.number)

    @property
    def api_ip(self) -> str:
        return str(self.network[1])

    @property
    def api_url(self) -> str:
        return url(self.api_ip, 6443, "https")

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
    def mark_of_ipv6(self) -> Path:
        """A file that tells what kind of cluster there is."""
        return self.root / _MARK_V6

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
            pods=_slice(self.pods, 64 if self.ipv6 else 24, index),
            folder=self.root / f"node{index}",
            link=f"{self.prefix}-l{index}",
        )


def default_layout(node_count: int = 0, ipv6: bool = False) -> Layout:
    """The cluster that commands and tests mean: number 0, or the one in AEGAEON_CLUSTER; `ipv6` of one that is to be
    made. Raises ClusterError."""
    chosen = os.environ.get("AEGAEON_CLUSTER", "0")
    if not chosen.isdecimal() or int(chosen) >= CLUSTERS:
        raise ClusterError(f"AEGAEON_CLUSTER is {chosen!r}; a machine has clusters 0 to {CLUSTERS - 1}")
    number = int(chosen)
    root = Path("/var/lib/aegaeon-e2e" + (f"-{number}" if number else ""))
    return Layout(root, number, node_count or _nodes_there(root), ipv6 or (root / _MARK_V6).exists())


def _nodes_there(root: Path) -> int:
    return len([child for child in root.glob("node*") if child.is_dir()])


def _slice(network: Network, prefix: int, index: int) -> Network:
    subnets: list[Network] = [*network.subnets(new_prefix=prefix)]
    return subnets[index]
