"""The configuration file, read once at the start into frozen objects.

Its form is fixed here alone; an unknown key, a missing one or a wrong type is an error that names the key.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails

from aegaeon_proto.outbound.egress import DIRECT, Egress
from aegaeon_scheduler.core.config import (
    POLICIES,
    ConstantsOf,
    LatencyConstants,
    PolicySettings,
    policy_settings,
)
from aegaeon_scheduler.core.config import SchedulerConfig as CoreConfig
from aegaeon_scheduler.core.domain import Tier
from aegaeon_scheduler.errors import ConfigError
from aegaeon_scheduler.parts import with_parts
from aegaeon_scheduler.removed_settings import without_removed

T = TypeVar("T", bound=BaseModel)
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HubEntry(_Frozen):
    """A repository of the Hugging Face hub; an empty revision is its default branch; the file holds an access token."""

    repository: str = Field(min_length=1)
    revision: str = ""
    credentials_file: str = ""


class S3Entry(_Frozen):
    """A prefix in an S3-compatible store; without an endpoint it is AWS's, without a file AWS's environment counts."""

    bucket: str = Field(min_length=1)
    prefix: str = ""
    endpoint: str = ""
    credentials_file: str = ""


class HttpEntry(_Frozen):
    """A folder on a web server; the file holds a bearer token."""

    url: str = Field(min_length=1)
    credentials_file: str = ""


class SourceEntry(_Frozen):
    """The source of a model's files: exactly one field is set."""

    directory: str | None = None
    root: str = ""  # of `directory`: symbolic links may not lead out of this folder; empty: anywhere
    hub: HubEntry | None = None
    s3: S3Entry | None = None
    http: HttpEntry | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> SourceEntry:
        if sum(source is not None for source in (self.directory, self.hub, self.s3, self.http)) != 1:
            raise ValueError('exactly one of "directory", "hub", "s3" and "http" must be given')
        return self


class AdapterEntry(_Frozen):
    """A low-rank adapter of a model."""

    name: str = Field(min_length=1)
    source: SourceEntry


class ModelEntry(_Frozen):
    """A model of the catalog and its objective: token k is on time at arrival + ttft_s + k * tbt_s."""

    name: str = Field(min_length=1)
    source: SourceEntry
    max_model_len: int = Field(default=0, ge=0)  # tokens; 0: what the model's config.json says
    ttft_s: Seconds
    tbt_s: Seconds
    tier: Tier = Tier.STANDARD
    weight: int = Field(default=1, ge=1, le=100)  # among models of the tier
    tool_calls: str = ""  # a dialect that gateways read; empty: what the chat template shows
    reasoning: str = ""  # the same of its reasoning
    adapters: tuple[AdapterEntry, ...] = ()
    task: Literal["", "generate", "embed", "score"] = ""  # what it is for; empty: what its files show
    matryoshka: bool = False  # its embeddings may be cut to fewer dimensions, whatever its files say
    prefix_share: str = ""  # whose prompts share KV cache with its tenants'; empty: each tenant's own alone
    public_prompts: tuple[str, ...] = ()  # system prompts whose KV cache is shared by all
    created_s: int = Field(default=0, ge=0)  # Unix time that clients see; 0: when the gateway started


def _entry(settings: PolicySettings) -> type[_Frozen]:
    """The form of a policy's settings in the file: names, defaults and bounds as the core defines them."""
    types = get_type_hints(type(settings))
    form = {each.name: (types[each.name], Field(default=each.default, **each.metadata)) for each in fields(settings)}
    made: type[_Frozen] = create_model(f"{settings.name}-policy", __base__=_Frozen, **cast(Any, form))
    return made


def _policy_name(policy: Any) -> str:
    """The name of the file's policy; slack by default."""
    name = policy.get("name", "slack") if isinstance(policy, dict) else getattr(policy, "name", "slack")
    return name if name in POLICIES else ""


_ENTRIES = {name: _entry(settings) for name, settings in POLICIES.items()}
if TYPE_CHECKING:
    PolicyEntry = _Frozen
else:
    PolicyEntry = Annotated[
        Union[tuple(Annotated[entry, Tag(name)] for name, entry in _ENTRIES.items())],
        Discriminator(
            _policy_name,
            custom_error_type="policy_name",
            custom_error_message="Input should be 'paper', 'slack' or 'prism'",
        ),
    ]


class MeasuredEntry(_Frozen):
    """Constants of Eq. 4-6 (core.config.LatencyConstants), all of them, measured for one model on one device."""

    model: str
    device: str
    a: float
    b: float
    c: float
    p0: float
    p1: float
    p2: float
    floor: float
    load_bytes_per_s: Seconds
    kv_bytes_per_s: Seconds
    weight_bytes: int | None = None  # sizes are the simulator's
    kv_bytes_per_token: int | None = None
    context_tokens: int | None = None


_SIZES = frozenset({"weight_bytes", "kv_bytes_per_token", "context_tokens"})


class ConstantsFile(_Frozen):
    """The file that `aegaeon calibrate` writes: `constants` are ours, `gpu` is the simulator's, the rest for people."""

    constants: tuple[MeasuredEntry, ...]
    gpu: Any = None
    memcpy_bytes_per_s: float | None = None
    side_by_side: float | None = None
    derived: Any = None
    fits: Any = None


class LeaseEntry(_Frozen):
    """The Lease by which one of several processes leads; the API server is that of the pod, or of KUBECONFIG."""

    namespace: str = Field(min_length=1)
    name: str = Field(min_length=1)
    holder: str = ""  # its own name there
    owner: dict[str, str] | None = None  # apiVersion, kind, name and uid: the Lease goes with it
    memory: Path | None = (
        None  # file of its own: where it led before, it leads again while the API server is unavailable
    )
    life_s: Seconds = 6.0  # a leader that was not heard of for so long is gone
    period_s: Seconds = 1.5  # the leader renews, and others look, so often
    over_s: Seconds = 30.0  # by the clocks of both: one that was last heard of so long ago is gone at the first look


class SchedulerConfig(_Frozen):
    """All that `python -m aegaeon_scheduler` needs to know."""

    listen: str = Field(min_length=1)  # gRPC target to serve on: "unix:/run/scheduler.sock", "127.0.0.1:7000"
    admin_listen: str | None = Field(default=None, min_length=1)  # gRPC target of service Admin; None: not served
    status_listen: str | None = Field(default=None, min_length=1)  # of this machine alone: Frontend.Status, plaintext
    tls: Path | None = None  # folder of ca.crt, tls.crt and tls.key: mutual TLS on both; None: plaintext
    lease: LeaseEntry | None = None  # who leads; None: this process, which is the only one
    pool: str = "default"
    policy: Annotated[PolicyEntry, BeforeValidator(without_removed)] = _ENTRIES["slack"]()
    models: tuple[ModelEntry, ...]
    tenants: dict[str, Any] | None = None  # message Tenants of proto/; None: gateways read their own file
    constants: Path | None = None  # latency constants by (model, device), as `aegaeon calibrate` writes them
    record: Path | None = None  # event log, for `aegaeon replay`
    heartbeat_timeout_s: Seconds = 2.0  # a sidecar silent for this long is gone
    reattach_s: float = Field(default=1.0, ge=0)  # a sidecar whose stream broke may come back within
    gateway_grace_s: float = Field(default=5.0, ge=0)  # and a gateway within
    hold_s: Seconds = 30.0  # longest wait in the queue before a request is refused
    start_s: float = Field(default=0.0, ge=0)  # the same while no engine serves its model yet; 0: hold_s
    prefill_chunk_tokens: int = Field(default=512, ge=1)  # prompt tokens of one prefill part
    max_pooled_tokens: int = Field(default=0, ge=0)  # tokens of a pass over prompts of a model that generates nothing
    admission: Literal["none", "feasible"] = "none"  # feasible: refuse at once what would be served too late
    kv_gate: float = Field(default=0.0, ge=0, le=1)  # no new session on engines whose KV is above this share; 0: none
    metrics_listen: str | None = Field(default=None, pattern=r"^.+:\d+$")  # "host:port" of GET /metrics
    otlp_endpoint: str | None = Field(default=None, pattern="^https?://.")  # spans of requests that gateways trace
    egress: Egress = DIRECT  # proxies and authorities of certificates on the way there
    ambient_egress: bool = False  # those of the environment instead

    @model_validator(mode="after")
    def _names_once(self) -> SchedulerConfig:
        names = [name for model in self.models for name in (model.name, *(adapter.name for adapter in model.adapters))]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"models: {', '.join(twice)} listed more than once; served names must be unique")
        return self


def load_config(path: Path, holder: str | None = None) -> SchedulerConfig:
    """Read and check the file. `holder`: in place of the file's. Raises ConfigError, naming file, key and what is wrong
    with it. Parts beside it count (parts.py)."""
    config = _checked(path, SchedulerConfig, with_parts(path, _read(path)))
    if config.lease is None:
        return config
    lease = config.lease.model_copy(update={"holder": holder or config.lease.holder})
    if not lease.holder:
        raise ConfigError(f"{path}: lease.holder: give it a name of its own, here or with --holder")
    return config.model_copy(update={"lease": lease})


def core_config(config: SchedulerConfig) -> CoreConfig:
    """The core's part of the configuration, with the measured constants. Raises ConfigError when their file cannot be
    used."""
    return CoreConfig(
        policy=_policy(config.policy),
        hold_s=config.hold_s,
        start_s=config.start_s,
        admission=config.admission,
        kv_gate=config.kv_gate,
        prefill_chunk_tokens=config.prefill_chunk_tokens,
        max_pooled_tokens=config.max_pooled_tokens,
        constants=_constants(config.constants) if config.constants else (),
    )


def _policy(entry: PolicyEntry) -> PolicySettings:
    settings = entry.model_dump()
    return replace(policy_settings(settings["name"]), **settings)


def _constants(path: Path) -> tuple[ConstantsOf, ...]:
    return tuple(
        ConstantsOf(
            entry.model, entry.device, LatencyConstants(**entry.model_dump(exclude={"model", "device", *_SIZES}))
        )
        for entry in _load(path, ConstantsFile).constants
    )


def _load(path: Path, form: type[T]) -> T:
    return _checked(path, form, _read(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _checked(path: Path, form: type[T], text: bytes) -> T:
    try:
        return form.model_validate_json(text, context=path)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {_complaint(line)}" for line in error.errors())) from error


def _complaint(error: ErrorDetails) -> str:
    key = ".".join(_keys(error))
    if error["type"] == "extra_forbidden":
        return f"{key}: unknown key; remove it or correct its name"
    message = error["msg"].removeprefix("Value error, ")
    return f"{key}: {message}" if key else message


def _keys(error: ErrorDetails) -> list[str]:
    """The way to the key in the file; the policy that the error is about is no key of it."""
    keys = [str(part) for part in error["loc"]]
    if error["type"] == "policy_name":
        return [*keys, "name"]
    return keys[:1] + keys[2:] if keys[:1] == ["policy"] and keys[1:2] and keys[1] in POLICIES else keys
