"""Models of the catalog: the location of their files, their pool's objectives, and their state on an engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Union

from aegaeon_proto.engine.ids import KvShape
from aegaeon_proto.pooling import Task

POOLING = frozenset((Task.EMBED.value, Task.SCORE.value))
"""tasks of models that generate nothing"""


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """A folder of this machine; symbolic links may not lead out of `root`, empty: anywhere."""

    directory: str
    root: str = ""


@dataclass(frozen=True, slots=True)
class HubSource:
    """A revision of a repository of the Hugging Face hub; empty: of its default branch."""

    repository: str
    revision: str = ""
    credentials_file: str = ""


@dataclass(frozen=True, slots=True)
class S3Source:
    """A prefix of a bucket; without `endpoint` of AWS."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    credentials_file: str = ""


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A folder on a web server."""

    url: str
    credentials_file: str = ""


Source = Union[DirectorySource, HubSource, S3Source, HttpSource]


class Tier(Enum):
    """Who comes late first when not all can be in time: batch before standard before interactive."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"

    @property
    def level(self) -> int:
        """Tiers above standard are less than 0."""
        return _LEVELS[self]


_LEVELS = {Tier.INTERACTIVE: -1, Tier.STANDARD: 0, Tier.BATCH: 1}


@dataclass(frozen=True, slots=True)
class Terms:
    """How a model stands beside others, or a request beside others for its model, when not all can be in time: its
    tier, its weight (of a request: its tenant's) in the tier."""

    tier: Tier = Tier.STANDARD
    weight: int = 1


ALIKE = Terms()
"""where neither is set"""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A low-rank adapter of a model. `identity`: of what is computed under the name."""

    name: str
    source: Source
    identity: str = ""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as the scheduler tells of it. `max_model_len` 0: what config.json says; `weight` 0 means 1.

    `identity`: of what is computed under the name; empty: of a scheduler without. `tool_calls`, `reasoning`,
    `matryoshka`, `prefix_share`, `public_prompts`, `created_s`: for gateways. `task`: what it is for; empty:
    what its files show.
    """

    name: str
    source: Source
    max_model_len: int = 0
    ttft_s: float = 0.0
    tbt_s: float = 0.0
    tier: Tier = Tier.STANDARD
    weight: int = 0
    identity: str = ""
    tool_calls: str = ""
    reasoning: str = ""
    adapters: tuple[AdapterSpec, ...] = ()
    task: str = ""
    matryoshka: bool = False
    prefix_share: str = ""
    public_prompts: tuple[str, ...] = ()
    created_s: int = 0


class ModelPhase(Enum):
    """How far a model is here."""

    FETCHING = "fetching"
    CACHED = "cached"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory that one model takes on an engine.

    `content`: hash of the weights, empty while they were never read whole; `task`: what it is for, empty: it generates.
    """

    weight_bytes: int
    weight_slabs: int
    kv_shape: KvShape
    kv_block_bytes: int
    kv_block_tokens: int
    max_model_len: int
    content: str = ""
    task: str = ""

    @property
    def pools(self) -> bool:
        """Returns whether the model generates nothing: a sequence ends with its prompt."""
        return self.task in POOLING


@dataclass(frozen=True, slots=True)
class AdapterState:
    """How far an adapter is. `unsupported`: as of a model."""

    adapter: str
    phase: ModelPhase
    reason: str = ""
    identity: str = ""
    unsupported: bool = False


@dataclass(frozen=True, slots=True)
class ModelState:
    """A report: how far a model is. `footprint` when it is cached; bytes, rate and time to go while it is fetched.

    `cold`: its first steps will take longer than later ones, unless a turn warms up. `unsupported`: it failed because
    this engine cannot run such a model. `absent`: it is not on this node, and is fetched when requests wait for it;
    `on_demand`: they do.
    """

    model: str
    phase: ModelPhase
    reason: str = ""
    footprint: Footprint | None = None
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_s: float = 0.0
    remaining_s: float = 0.0
    identity: str = ""
    adapters: tuple[AdapterState, ...] = ()
    cold: bool = False
    unsupported: bool = False
    absent: bool = False
    on_demand: bool = False
