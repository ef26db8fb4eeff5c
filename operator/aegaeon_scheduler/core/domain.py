"""The nouns that events, commands and policies share: those of the engines' protocol, and the scheduler's own.

They leave out what no decision needs (prompts, token ids, addresses).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType

from aegaeon_proto.engine.catalog import ALIKE, Footprint, Terms, Tier
from aegaeon_proto.engine.ids import CommandId, InstanceId, KvShape, ModelName, SeqId
from aegaeon_proto.engine.reports import FailureKind, Memory, OutsideSlabs, PrefixReuse, Role, ShapeMemory
from aegaeon_proto.engine.sequences import Finish, Held, Place

GatewayId = NewType("GatewayId", str)


class Phase(Enum):
    """How far a model is on an instance. ABSENT: not on its node, which fetches it on request."""

    ABSENT = "absent"
    FETCHING = "fetching"
    CACHED = "cached"
    FAILED = "failed"


class RejectCode(Enum):
    """Why a request was not taken or not finished; the gateway turns it into an HTTP status."""

    UNKNOWN_MODEL = "unknown_model"
    MODEL_FAILED = "model_failed"
    OVERLOADED = "overloaded"
    TOO_LONG = "too_long"
    ENGINE = "engine"
    INVALID = "invalid"
    CHANGED = "changed"
    UNSERVED = "unserved"


POISONED = (RejectCode.ENGINE, RejectCode.INVALID)
"""it ended because no engine could go on with it"""
PASSING = (RejectCode.OVERLOADED, RejectCode.UNSERVED)
"""the same request may succeed later"""


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objective: token k is on time at arrival + ttft_s + k * tbt_s."""

    ttft_s: float
    tbt_s: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model of the catalog: its served name, its objective, its terms. `identity`: of what is computed under it."""

    name: ModelName
    slo: Slo
    terms: Terms = ALIKE
    identity: str = ""


Lacking = dict[InstanceId, dict[str, str]]
"""by instance: identities of adapters, each with the reason"""


class Stage(Enum):
    """Where a sequence is in its life."""

    QUEUED = "queued"
    PREFILL = "prefill"
    HANDOFF = "hand-off"
    DECODE = "decode"
    LOST = "lost"
