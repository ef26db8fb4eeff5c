"""The configuration file, read once at the start into frozen objects.

Its form is fixed here alone; an unknown key, a missing one or a wrong type is an error that names the key.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import ErrorDetails

from aegaeon_proto.outbound.egress import DIRECT, Egress
from aegaeon_scheduler.core.config import (
    ConstantsOf,
    LatencyConstants,
    PaperSettings,
    PolicySettings,
    PrismSettings,
    SlackSettings,
    policy_settings,
)
from aegaeon_scheduler.core.config import SchedulerConfig as CoreConfig
from aegaeon_scheduler.core.domain import Tier
from aegaeon_scheduler.errors import ConfigError
from aegaeon_scheduler.parts import with_parts

T = TypeVar("T", bound=BaseModel)
_PAPER, _SLACK, _PRISM = PaperSettings(), SlackSettings(), PrismSettings()
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


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


class PaperEntry(_Frozen):
    """Bounds of core.config.PaperSettings, which says what each setting means and why it has its value."""

    name: Literal["paper"] = "paper"
    q_max_s: Seconds = _PAPER.q_max_s
    max_gpsize: Count = _PAPER.max_gpsize
    alpha_floor: Share = _PAPER.alpha_floor
    resident_quota_s: Seconds = _PAPER.resident_quota_s
    min_quota_s: Seconds = _PAPER.min_quota_s
    max_turn_steps: Count = _PAPER.max_turn_steps


class SlackEntry(_Frozen):
    """Bounds of core.config.SlackSettings, which says what each setting means and why it has its value."""

    name: Literal["slack"] = "slack"
    quantum_steps: Count = _SLACK.quantum_steps
    part_s: Seconds = _SLACK.part_s
    least_part_s: Seconds = _SLACK.least_part_s
    relative_power: Share = _SLACK.relative_power
    even_share: Share = _SLACK.even_share
    late_slack_s: Seconds = _SLACK.late_slack_s
    pass_interval_s: Seconds = _SLACK.pass_interval_s
    pass_gap_s: Seconds = _SLACK.pass_gap_s
    lone_share: Share = _SLACK.lone_share
    full_util: Positive = _SLACK.full_util
    idle_util: Share = _SLACK.idle_util
    hot_util: Positive = _SLACK.hot_util
    hot_margin: NotNegative = _SLACK.hot_margin
    swamped_share: Share = _SLACK.swamped_share
    idle_gap: NotNegative = _SLACK.idle_gap
    urgent_share: Share = _SLACK.urgent_share
    tier_share: Share = _SLACK.tier_share
    ease_share: Share = _SLACK.ease_share
    ample_share: NotNegative = _SLACK.ample_share
    behind_share: Share = _SLACK.behind_share
    aside_share: Share = _SLACK.aside_share
    greed_share: Share = _SLACK.greed_share
    greed_free: NotNegative = _SLACK.greed_free
    cheap_share: Share = _SLACK.cheap_share
    prompt_price: NotNegative = _SLACK.prompt_price
    price_ttfts: NotNegative = _SLACK.price_ttfts
    preempt_share: Share = _SLACK.preempt_share
    away_margin: NotNegative = _SLACK.away_margin
    idle_margin: NotNegative = _SLACK.idle_margin
    first_weight: NotNegative = _SLACK.first_weight
    min_stay_s: NotNegative = _SLACK.min_stay_s
    headroom: Share = _SLACK.headroom
    relief_share: Share = _SLACK.relief_share
    shrink_share: Share = _SLACK.shrink_share
    split_share: Share = _SLACK.split_share
    unite_share: Share = _SLACK.unite_share
    soon_ttfts: Positive = _SLACK.soon_ttfts
    soon_share: Share = _SLACK.soon_share
    soon_rise: NotNegative = _SLACK.soon_rise
    soon_fall: NotNegative = _SLACK.soon_fall
    soon_least: Share = _SLACK.soon_least
    soon_most: Share = _SLACK.soon_most
    group_price: NotNegative = _SLACK.group_price
    later_ttfts: Positive = _SLACK.later_ttfts
    later_share: Share = _SLACK.later_share
    packed_ttfts: NotNegative = _SLACK.packed_ttfts
    link_share: Share = _SLACK.link_share
    warm: bool = _SLACK.warm
    warm_gap_s: Seconds = _SLACK.warm_gap_s
    warm_reserve: Share = _SLACK.warm_reserve
    stale_s: Seconds = _SLACK.stale_s
    busy_util: Positive = _SLACK.busy_util
    busy_slack_s: Seconds = _SLACK.busy_slack_s
    busy_gap: Positive = _SLACK.busy_gap
    move_slack_s: NotNegative = _SLACK.move_slack_s


class PrismEntry(_Frozen):
    """Bounds of core.config.PrismSettings, which says what each setting means and why it has its value."""

    name: Literal["prism"] = "prism"
    window_s: Seconds = _PRISM.window_s
    interval_s: Seconds = _PRISM.interval_s
    threshold: NotNegative = _PRISM.threshold
    headroom: Share = _PRISM.headroom
    quantum_steps: Count = _PRISM.quantum_steps
    prompts_in_a_row: Count = _PRISM.prompts_in_a_row
    part_tokens: Count = _PRISM.part_tokens
    prompts_seen: Count = _PRISM.prompts_seen
    pass_interval_s: Seconds = _PRISM.pass_interval_s
    pass_gap_s: Seconds = _PRISM.pass_gap_s


_POLICIES = ("paper", "slack", "prism")


def _policy_name(policy: Any) -> str:
    """The name of the file's policy; slack by default."""
    name = policy.get("name", "slack") if isinstance(policy, dict) else getattr(policy, "name", "slack")
    return name if name in _POLICIES else ""


PolicyEntry = Annotated[
    Union[
        Annotated[PaperEntry, Tag("paper")],
        Annotated[SlackEntry, Tag("slack")],
        Annotated[PrismEntry, Tag("prism")],
    ],
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
    policy: PolicyEntry = SlackEntry()
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
    admission: Literal["none", "feasible"] = "none"  # feasible: refuse at once what would be served too late
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
        prefill_chunk_tokens=config.prefill_chunk_tokens,
        constants=_constants(config.constants) if config.constants else (),
    )


def _policy(entry: PaperEntry | SlackEntry | PrismEntry) -> PolicySettings:
    return replace(policy_settings(entry.name), **entry.model_dump())


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
        return form.model_validate_json(text)
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
    return keys[:1] + keys[2:] if keys[:1] == ["policy"] and keys[1:2] and keys[1] in _POLICIES else keys
