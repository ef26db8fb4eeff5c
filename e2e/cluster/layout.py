"""Names, addresses and folders of the cluster: every other module takes them from here.

The control plane has a network namespace of its own. The machine itself has an address on the bridge in there, so
kubectl and clients run without entering it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

NETWORK = IPv4Network("10.231.0.0/24")
SERVICES = IPv4Network("10.233.0.0/16")
API_IP = str(NETWORK[1])
HOST_IP = str(NETWORK[254])
API_URL = f"https://{API_IP}:6443"
DOMAIN = "cluster.local"
CONTROL_PLANE = "aegaeon-cp"
BRIDGE = "aegaeon-br"
HOST_LINK = "aegaeon-host"


def cache_folder() -> Path:
    """Where binaries and images are kept between clusters."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "aegaeon" / "e2e"


@dataclass(frozen=True, slots=True)
class Layout:
    """Folders of one cluster."""

    root: Path

    @property
    def binaries(self) -> Path:
        return cache_folder() / "bin"

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


def default_layout() -> Layout:
    """The cluster of this machine: there is one at a time."""
    return Layout(Path("/var/lib/aegaeon-e2e"))
