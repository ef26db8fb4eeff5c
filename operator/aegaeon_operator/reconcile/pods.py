"""A pod as it should be, wherever it runs: a command, a config file, a probe, and its place in the order."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Union

Json = dict[str, object]


class PodRole(Enum):
    """What a pod does. The order is that of draining: the door closes first, the brain goes last."""

    GATEWAY = "gateway"
    SIDECAR = "sidecar"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class SocketProbe:
    """Ready when the unix socket takes a connection."""

    path: Path


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Ready when a GET answers 200."""

    host: str
    port: int
    path: str


@dataclass(frozen=True, slots=True)
class AttachedProbe:
    """Ready when the scheduler (gRPC target) says that this instance is attached."""

    scheduler: str
    instance: str


Probe = Union[SocketProbe, HttpProbe, AttachedProbe]


@dataclass(frozen=True, slots=True)
class DesiredPod:
    """One process. `config` is written to `config_file`, which `argv` names; `depends` are pods to be ready before.

    `files` are further files that its configuration names. One that is `on_demand` is started by the autoscaler.
    """

    name: str
    role: PodRole
    argv: tuple[str, ...]
    config: Json
    config_file: Path
    probe: Probe
    depends: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[Path, Json] = field(default_factory=dict)
    on_demand: bool = False
