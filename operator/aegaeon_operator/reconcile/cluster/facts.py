"""What is observed of a pool before deciding, and what is decided. Frozen; time and secrets are facts too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ModelPool

Json = dict[str, Any]
Kind = TypeVar("Kind", GpuPool, ModelPool)


class Key(NamedTuple):
    """Namespace and name of a GpuPool: what one reconcile is about."""

    namespace: str
    name: str


SecretName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class SecretsRead:
    """Secrets that ModelPools name: what each had when it was last read, and why some cannot be read now.

    One that is in neither is not there.
    """

    content: Mapping[SecretName, Mapping[str, str]] = field(default_factory=dict)
    unreadable: Mapping[SecretName, str] = field(default_factory=dict)


class ChildKey(NamedTuple):
    """An object that the operator makes."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> ChildKey:
        """Of a manifest or a live object."""
        return cls(manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"])


class Subject(NamedTuple):
    """An object that Events are about. `uid`: those of its predecessors of that name are not."""

    key: ChildKey
    uid: str

    @classmethod
    def of(cls, live: Mapping[str, Any]) -> Subject:
        """Of a live object."""
        return cls(ChildKey.of(live), live["metadata"].get("uid", ""))


@dataclass(frozen=True, slots=True)
class Live(Generic[Kind]):
    """A GpuPool or ModelPool as the API server has it; `problems` say why its spec cannot be used (`value` None).

    Two that differ in their status alone are equal: nothing is decided of that.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    value: Kind | None
    status: Json = field(compare=False)
    problems: tuple[str, ...] = ()

    @property
    def age(self) -> tuple[str, str, str]:
        """Sorts the oldest first, always in the same way."""
        return self.created, self.namespace, self.name

    @property
    def created_s(self) -> int:
        """Unix time."""
        return int(datetime.fromisoformat(self.created).timestamp())


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment or StatefulSet: the pods that it was asked for, and how far it is with them."""

    subject: Subject
    asked: int
    pods: int
    ready: int
    rolling: bool  # not all pods are as its template says, as `kubectl rollout status` tells
    refused: str = ""  # why the API server lets it make no pods

    @classmethod
    def of(cls, live: Mapping[str, Any]) -> Workload:
        """Of a live object, whose status is empty at first."""
        status: Json = live.get("status") or {}
        failures = [one for one in status.get("conditions", ()) if one["type"] == "ReplicaFailure"]
        return cls(
            subject=Subject.of(live),
            asked=live["spec"].get("replicas", 1),
            pods=status.get("replicas", 0),
            ready=status.get("readyReplicas", 0),
            rolling=_is_rolling(live, status),
            refused=next((one.get("message", "") for one in failures if one.get("status") == "True"), ""),
        )


def _is_rolling(live: Mapping[str, Any], status: Json) -> bool:
    if status.get("observedGeneration", 0) < live["metadata"].get("generation", 1):
        return True
    if live["kind"] == "StatefulSet":
        return bool(status.get("updateRevision") != status.get("currentRevision"))
    updated = status.get("updatedReplicas", 0)
    return bool(updated < live["spec"].get("replicas", 1) or status.get("replicas", 0) > updated)


@dataclass(frozen=True, slots=True)
class RedisAt:
    """The Redis of all pools: its URL, and files with its password and the authorities of its certificate."""

    url: str
    password_file: Path | None = None
    ca_file: Path | None = None

    @property
    def files(self) -> dict[str, Path]:
        """By the names that they have in the pools' Secrets."""
        return {name: file for name, file in (("password", self.password_file), ("ca.crt", self.ca_file)) if file}


@dataclass(frozen=True, slots=True)
class Egress:
    """Where pools' pods may go is restricted; ports of pods, as network plugins see them."""

    api_server_ports: tuple[int, ...] = (443, 6443)
    dns_ports: tuple[int, ...] = (53,)


@dataclass(frozen=True, slots=True)
class Platform:
    """What the operator's environment says: the same for all pools."""

    control_image: str
    engine_image: str
    vllm_image: str
    """of engines with backend vllm"""
    pull_policy: str = "IfNotPresent"
    redis: RedisAt | None = None
    namespace: str = "default"
    """of the operator: it alone may reach the schedulers' admin ports"""
    metrics_namespaces: tuple[str, ...] = ("monitoring",)
    """whose pods may reach the ports of metrics; `*`: all"""
    egress: Egress | None = None
    """None: pools' pods may go anywhere"""
    picker_role: str = "ClusterRole/picker"
    """kind and name of the role that endpoint pickers are given"""
    scheduler_role: str = "ClusterRole/scheduler"
    """and of the one for schedulers"""
    provider: Literal["none", "istio"] = "none"
    """of Gateways: what it wants beside the standard objects"""
    fixed_user: bool = True
    """pods run as our user; else as the platform says, as OpenShift gives each namespace users of its own"""
    ipv6: bool = False
    """the first address of every pod, which kubelets probe, is of IPv6"""

    @property
    def anywhere(self) -> str:
        """All addresses of a pod of the family of its first one, as its servers listen."""
        return "[::]" if self.ipv6 else "0.0.0.0"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as the scheduler sees it. Tokens and `busy_s` are counted since its start; decisions are made of those of
    the last ten minutes (windows.py), which give `token_s`, too: seconds of an engine for a token, 0: not measured.

    Two that differ in these alone are equal: what a status says of them changes less often (served.py).
    """

    phase: str = ""  # "", fetching, cached, failed
    reason: str = ""
    resident: bool = False
    queued: int = 0
    running: int = 0
    output_tokens: int = field(default=0, compare=False)
    tokens_on_time: int = field(default=0, compare=False)
    busy_s: float = field(default=0.0, compare=False)
    token_s: float = field(default=0.0, compare=False)
    weight_bytes: int = 0
    bytes_done: int = 0  # of those that are on their way to a host cache
    bytes_total: int = 0
    bytes_per_s: float = 0.0
    remaining_s: float = 0.0
    roles: frozenset[str] = frozenset()  # of the engines that its requests may go to
    apart: bool = False  # engines that only prefill have it, and none that can take KV over from them serves it
    unanswered: bool = False  # requests of it are, or were given up, and nothing was computed for them (answers.py)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine as the scheduler sees it. `attached`: it takes work; one that is about to end no longer does.

    `turn_of`: the model whose turn it is, `turn_s`: since that began or was last reported. `prepares`: models that it
    loads, or of which it runs first steps.
    """

    name: str
    role: str
    attached: bool
    sequences: int
    kv_used: float
    outside_reserved_bytes: int = 0  # beside its slabs
    outside_peak_bytes: int = 0
    turn_of: str = ""
    turn_s: float = 0.0
    prepares: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SuspectFacts:
    """A GPU that an engine leaves alone, and the last error that it was lost with."""

    engine: str
    node: str
    uuid: str
    error: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Open requests of a model: the age of the oldest, and seconds since a step of any; None: there was none."""

    oldest_s: float
    worked_s: float | None = None


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """What the pool's scheduler says; `oldest_wait_s` is of the request that has waited longest for an engine, not
    for a model that is being fetched.

    `open_requests` are open now, `ended` have ended since its start. `waiting`: of models with open requests.
    `worked_s`: since a step of any request, None: there was none. `answered_at`: Unix time of the newest token, or 0.
    `stuck`: engines that are at one step for too long; `stopped`: no engine moves, and requests wait (answers.py).
    """

    incarnation: str
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    engines: tuple[EngineFacts, ...] = ()
    oldest_wait_s: float = 0.0
    open_requests: int = 0
    ended: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)  # models, or their changes, that it cannot serve, and why
    changing: Mapping[str, str] = field(default_factory=dict)  # models whose change is under way, and how far it is
    gateways: frozenset[str] | None = None  # attached ones, by the names of their pods; None: not known
    redis_away: Mapping[str, str] = field(default_factory=dict)  # attached gateways that cannot use Redis, and why
    suspects: tuple[SuspectFacts, ...] = ()
    standby: bool = False  # another process leads, or should
    term: int = 0
    waiting: Mapping[str, Wait] = field(default_factory=dict)
    worked_s: float | None = None
    answered_at: int = 0
    stuck: tuple[str, ...] = ()
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that one reconcile knows. `secrets` are those that ModelPools name, as they were last read;
    `unreadable` says why some cannot be read now."""

    key: Key
    now: datetime
    platform: Platform
    gpu_pool: Live[GpuPool] | None
    model_pools: tuple[Live[ModelPool], ...]
    children: Mapping[ChildKey, Json] = field(default_factory=dict)
    workloads: Mapping[ChildKey, Workload] = field(default_factory=dict)
    """those of the children that make pods"""
    secrets: Mapping[SecretName, Mapping[str, str]] = field(default_factory=dict)
    unreadable: Mapping[SecretName, str] = field(default_factory=dict)
    scheduler: SchedulerFacts | None = None
    redis: Mapping[str, str] = field(default_factory=dict)
    """content of the files of Redis, by name"""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """engines by role as the autoscaler wants them; a role without min and max is not in it"""
    superseded: tuple[str, ...] = ()
    """roles that the spec has no more, whose engines stay until others can serve"""
    failover: bool = False
    """the first scheduler is silent, so a second one runs whatever the spec says"""
    pods: tuple[Json, ...] = ()
    """of the pool, as the API server has them"""
    warnings: Mapping[ChildKey, str] = field(default_factory=dict)
    """what the newest Event of type Warning says of objects whose status does not tell what they wait for"""
    unreachable: str = ""
    """why a scheduler whose pod is ready does not answer the operator"""
    keeps_standby: str = ""
    """why the standby stays on the node that it shares with the leader"""

    @property
    def spec(self) -> GpuPoolSpec | None:
        """Of the GpuPool; None where it is not there or cannot be used."""
        return self.gpu_pool.value.spec if self.gpu_pool and self.gpu_pool.value else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a ModelPool, or some of its models, are not served."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Note:
    """An Event to post about an object."""

    about: Live[Any]
    warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """The status that an object should have."""

    about: Live[Any]
    status: Json
