"""The operator's settings for pools, from its environment: the same for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class RedisAt:
    """The Redis of all pools: its URL, and files with its password and certificate authorities."""

    url: str
    password_file: Path | None = None
    ca_file: Path | None = None

    @property
    def files(self) -> dict[str, Path]:
        """The files by their names in the pools' Secrets."""
        return {name: file for name, file in (("password", self.password_file), ("ca.crt", self.ca_file)) if file}


@dataclass(frozen=True, slots=True)
class Egress:
    """Restriction of the pools' egress; the ports are those of pods, which network plugins see."""

    api_server_ports: tuple[int, ...] = (443, 6443)
    dns_ports: tuple[int, ...] = (53,)


@dataclass(frozen=True, slots=True)
class Platform:
    """Settings from the operator's environment, the same for all pools."""

    control_image: str
    engine_image: str
    vllm_image: str
    """image of engines with backend vllm"""
    pull_policy: str = "IfNotPresent"
    redis: RedisAt | None = None
    namespace: str = "default"
    """namespace of the operator, which may reach the schedulers' admin ports"""
    metrics_namespaces: tuple[str, ...] = ("monitoring",)
    """namespaces whose pods may scrape metrics; `*`: all"""
    egress: Egress | None = None
    """None: egress of the pools' pods is not restricted"""
    picker_role: str = "ClusterRole/picker"
    """kind and name of the role of endpoint pickers"""
    scheduler_role: str = "ClusterRole/scheduler"
    """kind and name of the role of schedulers"""
    provider: Literal["none", "istio"] = "none"
    """provider of Gateways, which may need more than the standard objects"""
    fixed_user: bool = True
    """pods run as the images' user; else the platform chooses it, as OpenShift does for each namespace"""
    ipv6: bool = False
    """the first address of a pod, which the kubelet probes, is IPv6"""

    @property
    def anywhere(self) -> str:
        """Wildcard address for servers, of the family of a pod's first address."""
        return "[::]" if self.ipv6 else "0.0.0.0"
