"""Inputs and results of a reconcile of a pool, as frozen types; the time and Secrets are inputs, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from aegaeon_operator.reconcile.cluster.platform import Platform
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ModelPool

Json = dict[str, Any]
Kind = TypeVar("Kind", GpuPool, ModelPool)


class Key(NamedTuple):
    """Namespace and name of a GpuPool, the key of a reconcile."""

    namespace: str
    name: str


SecretName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class SecretsRead:
    """Secrets referenced by ModelPools: last content, and the error of those that cannot be read now.

    A Secret that is in neither does not exist.
    """

    content: Mapping[SecretName, Mapping[str, str]] = field(default_factory=dict)
    unreadable: Mapping[SecretName, str] = field(default_factory=dict)


class ChildKey(NamedTuple):
    """Key of an object that the operator creates."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> ChildKey:
        """Return the key of a manifest or a live object."""
        return cls(manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"])


class Subject(NamedTuple):
    """An object of Events. `uid` excludes Events of an earlier object with the same name."""

    key: ChildKey
    uid: str

    @classmethod
    def of(cls, live: Mapping[str, Any]) -> Subject:
        """Return the subject for a live object."""
        return cls(ChildKey.of(live), live["metadata"].get("uid", ""))


@dataclass(frozen=True, slots=True)
class Live(Generic[Kind]):
    """A GpuPool or ModelPool of the API server; `problems` explain why its spec is invalid (`value` None).
    `secrets`: those that it references.

    Objects that differ only in their status are equal: no decision depends on it.
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
    secrets: tuple[SecretName, ...] = ()

    @property
    def age(self) -> tuple[str, str, str]:
        """Sort key, the oldest first and unambiguous."""
        return self.created, self.namespace, self.name

    @property
    def created_s(self) -> int:
        """Creation as Unix time."""
        return int(datetime.fromisoformat(self.created).timestamp())


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment or StatefulSet: desired pods, and its progress."""

    subject: Subject
    desired: int
    pods: int
    ready: int
    rolling: bool  # a rollout is in progress, as for `kubectl rollout status`
    refused: str = ""  # why the API server refuses its pods

    @classmethod
    def of(cls, live: Mapping[str, Any]) -> Workload:
        """Return the workload of a live object, whose status is empty at first."""
        status: Json = live.get("status") or {}
        conditions = status.get("conditions", ())
        failures = [condition for condition in conditions if condition["type"] == "ReplicaFailure"]
        return cls(
            subject=Subject.of(live),
            desired=live["spec"].get("replicas", 1),
            pods=status.get("replicas", 0),
            ready=status.get("readyReplicas", 0),
            rolling=_is_rolling(live, status),
            refused=next((failure.get("message", "") for failure in failures if failure.get("status") == "True"), ""),
        )


def _is_rolling(live: Mapping[str, Any], status: Json) -> bool:
    if status.get("observedGeneration", 0) < live["metadata"].get("generation", 1):
        return True
    if live["kind"] == "StatefulSet":
        return bool(status.get("updateRevision") != status.get("currentRevision"))
    updated = status.get("updatedReplicas", 0)
    return bool(updated < live["spec"].get("replicas", 1) or status.get("replicas", 0) > updated)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's state at the scheduler. Tokens and `busy_s` are counted since its start; windows.py reduces them to the
    last ten minutes and computes `token_s`, the engine seconds per token (0: not measured).
    Facts that differ only in these numbers are equal: their part of a status changes less often.
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
    bytes_done: int = 0  # of a fetch to a host cache
    bytes_total: int = 0
    bytes_per_s: float = 0.0
    remaining_s: float = 0.0
    roles: frozenset[str] = frozenset()  # of the engines that may take its requests
    absent_roles: frozenset[str] = frozenset()  # of the engines that fetch it on demand
    apart: bool = False  # prefill engines have it, and no decode engine that can take over their KV cache serves it
    unanswered: bool = False  # its requests are open, or were cancelled, without progress (progress.py)


UNKNOWN_MODEL = ModelFacts()
"""facts of a model that the scheduler does not know"""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine's state at the scheduler. `attached`: it takes work; a draining engine does not.

    `turn_of`: the model of its turn; `turn_s`: time since the turn began or was last reported. `prepares`: models that
    it loads, or whose first steps it runs.
    """

    name: str
    role: str
    attached: bool
    sequences: int
    kv_used: float
    outside_reserved_bytes: int = 0  # outside its slabs
    outside_peak_bytes: int = 0
    turn_of: str = ""
    turn_s: float = 0.0
    prepares: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SuspectFacts:
    """A GPU that an engine does not use, and the last error on which it was lost."""

    engine: str
    node: str
    uuid: str
    error: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Open requests of a model: age of the oldest, and seconds since the last step of any; None: no step yet."""

    oldest_s: float
    worked_s: float | None = None


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """The state reported by the pool's scheduler. `oldest_wait_s`: longest wait for an engine, without waits for a
    model that is being fetched.
    `open_requests`: open now; `ended`: since its start. `waiting`: by model with open requests.
    `worked_s`: time since the last step of any request; None: no step yet. `answered_at`: Unix time of the last token,
    or 0. `stuck`: engines whose step takes too long; `stopped`: requests wait and no engine makes progress
    (progress.py).
    """

    incarnation: str
    models: Mapping[str, ModelFacts] = field(default_factory=dict)
    engines: tuple[EngineFacts, ...] = ()
    oldest_wait_s: float = 0.0
    open_requests: int = 0
    ended: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)  # models or changes that it cannot serve, with the reason
    changing: Mapping[str, str] = field(default_factory=dict)  # models that are being changed, with the progress
    gateways: frozenset[str] | None = None  # attached gateways by the name of the pod; None: not known
    redis_away: Mapping[str, str] = field(default_factory=dict)  # attached gateways that cannot reach Redis, and why
    suspects: tuple[SuspectFacts, ...] = ()
    standby: bool = False  # not the leader
    term: int = 0
    waiting: Mapping[str, Wait] = field(default_factory=dict)
    worked_s: float | None = None
    answered_at: int = 0
    stuck: tuple[str, ...] = ()
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """All inputs of a reconcile. `model_pools`: the oldest first. `secrets`: last content of the Secrets that they
    reference; `unreadable`: errors of those that cannot be read now."""

    key: Key
    now: datetime
    platform: Platform
    gpu_pool: Live[GpuPool] | None
    model_pools: tuple[Live[ModelPool], ...]
    children: Mapping[ChildKey, Json] = field(default_factory=dict)
    workloads: Mapping[ChildKey, Workload] = field(default_factory=dict)
    """children that create pods"""
    secrets: Mapping[SecretName, Mapping[str, str]] = field(default_factory=dict)
    unreadable: Mapping[SecretName, str] = field(default_factory=dict)
    scheduler: SchedulerFacts | None = None
    redis: Mapping[str, str] = field(default_factory=dict)
    """content of the files for Redis, by name"""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """engines by role from the autoscaler, for roles with min and max"""
    superseded: tuple[str, ...] = ()
    """roles removed from the spec whose engines stay until other engines can serve"""
    failover: bool = False
    """the first scheduler does not answer, so a second one runs regardless of the spec"""
    pods: tuple[Json, ...] = ()
    """the pool's pods"""
    warnings: Mapping[ChildKey, str] = field(default_factory=dict)
    """message of the newest Warning Event of objects whose status does not explain why they are not ready"""
    unreachable: str = ""
    """error of the operator's call to a scheduler whose pod is ready"""
    keeps_standby: str = ""
    """reason for the standby to stay on the leader's node"""

    @property
    def spec(self) -> GpuPoolSpec | None:
        """Spec of the GpuPool; None if it does not exist or is invalid."""
        return self.gpu_pool.value.spec if self.gpu_pool and self.gpu_pool.value else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason for not serving a ModelPool or some of its models."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Note:
    """An Event to create for an object."""

    about: Live[Any]
    warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """The new status of an object."""

    about: Live[Any]
    status: Json
