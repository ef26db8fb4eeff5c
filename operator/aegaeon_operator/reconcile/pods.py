"""A desired pod on one machine: command, configuration file, probe and dependencies."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Union

Json = dict[str, object]


class PodRole(Enum):
    """The role of a pod, in the order of draining: gateway first, scheduler last."""

    GATEWAY = "gateway"
    SIDECAR = "sidecar"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class SocketProbe:
    """A probe that is ready when a unix socket accepts a connection."""

    path: Path


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """A probe that is ready when a GET answers 200."""

    host: str
    port: int
    path: str


@dataclass(frozen=True, slots=True)
class AttachedProbe:
    """A probe that is ready when the scheduler (gRPC target) reports the instance as attached."""

    scheduler: str
    instance: str


Probe = Union[SocketProbe, HttpProbe, AttachedProbe]


@dataclass(frozen=True, slots=True)
class DesiredPod:
    """A process. `config` is written to `config_file`, which `argv` names; `depends`: pods that must be ready before.

    `files`: other files that its configuration names. `on_demand`: the autoscaler starts it.
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
