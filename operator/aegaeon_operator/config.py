"""The operator's settings, from its environment, read once in `__main__`."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from aegaeon_operator.errors import SettingsError
from aegaeon_operator.reconcile.cluster.platform import Egress, Platform, RedisAt


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """The settings of `python -m aegaeon_operator`."""

    platform: Platform
    namespaces: tuple[str, ...]
    """namespaces to watch; empty: all"""
    holder: str
    """the operator's name in the Lease"""
    health_port: int = 8080
    """GET /healthz; 0: none"""
    metrics_port: int = 9090
    """GET /metrics; 0: none"""
    workers: int = 16
    """pools reconciled concurrently"""
    relist_s: float = 300.0
    """period of full lists: the longest that an event missed by a watch goes unnoticed"""
    discover_s: float = 10.0
    """period of the discovery of kinds that the API server did not serve"""


def from_environment(env: Mapping[str, str]) -> OperatorConfig:
    """Read the variables that `python -m aegaeon_operator --help` lists. Raises SettingsError."""
    tag = _version()
    platform = Platform(
        control_image=env.get("AEGAEON_CONTROL_IMAGE") or f"localhost/aegaeon-control:{tag}",
        engine_image=env.get("AEGAEON_ENGINE_IMAGE") or f"localhost/aegaeon-engine:{tag}",
        vllm_image=env.get("AEGAEON_VLLM_IMAGE") or f"localhost/aegaeon-engine-vllm:{tag}",
        pull_policy=env.get("AEGAEON_IMAGE_PULL_POLICY") or "IfNotPresent",
        redis=_redis(env),
        namespace=env.get("POD_NAMESPACE") or "default",
        metrics_namespaces=_names(env.get("AEGAEON_METRICS_NAMESPACES", "monitoring")),
        egress=_egress(env),
        picker_role=env.get("AEGAEON_PICKER_ROLE") or "ClusterRole/aegaeon-operator-picker",
        scheduler_role=env.get("AEGAEON_SCHEDULER_ROLE") or "ClusterRole/aegaeon-operator-scheduler",
        fixed_user=_fixed_user(env.get("AEGAEON_SECURITY_CONTEXT") or "fixed"),
        ipv6=":" in env.get("KUBERNETES_SERVICE_HOST", ""),
        provider=_provider(env.get("AEGAEON_GATEWAY_PROVIDER") or "none"),
    )
    namespaces = _names(env.get("AEGAEON_NAMESPACES", ""))
    holder = env.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
    health, metrics = _port(env, "AEGAEON_HEALTH_PORT", "8080"), _port(env, "AEGAEON_METRICS_PORT", "9090")
    return OperatorConfig(platform, namespaces, holder, health, metrics)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _port(env: Mapping[str, str], name: str, default: str) -> int:
    text = env.get(name) or default
    if not text.isdecimal() or int(text) > 65535:
        raise SettingsError(f"{name} is {text!r}; it must be a port, or 0 for none")
    return int(text)


def _egress(env: Mapping[str, str]) -> Egress | None:
    enabled = env.get("AEGAEON_POOL_EGRESS") or "false"
    if enabled not in ("true", "false"):
        raise SettingsError(f"AEGAEON_POOL_EGRESS is {enabled!r}; it must be true or false")
    if enabled == "false":
        return None
    return Egress(_ports(env, "AEGAEON_API_SERVER_PORTS", "443,6443"), _ports(env, "AEGAEON_DNS_PORTS", "53"))


def _ports(env: Mapping[str, str], name: str, default: str) -> tuple[int, ...]:
    texts = _names(env.get(name) or default)
    if not all(text.isdecimal() and 0 < int(text) < 65536 for text in texts):
        raise SettingsError(f"{name} is {env[name]!r}; it must be ports, separated by commas")
    return tuple(map(int, texts))


def _redis(env: Mapping[str, str]) -> RedisAt | None:
    url, password, authorities = (env.get(f"AEGAEON_REDIS_{name}") for name in ("URL", "PASSWORD_FILE", "CA_FILE"))
    if not url:
        return None
    return RedisAt(url, Path(password) if password else None, Path(authorities) if authorities else None)


def _provider(text: str) -> Literal["none", "istio"]:
    if text == "istio":
        return "istio"
    if text != "none":
        raise SettingsError(f"AEGAEON_GATEWAY_PROVIDER is {text!r}; it must be none or istio")
    return "none"


def _fixed_user(text: str) -> bool:
    if text not in ("fixed", "platform"):
        raise SettingsError(f"AEGAEON_SECURITY_CONTEXT is {text!r}; it must be fixed or platform")
    return text == "fixed"


def _version() -> str:
    try:
        return version("aegaeon")
    except PackageNotFoundError:  # images contain the packages without their metadata
        return "latest"
