"""KV memory: both tiers, and the sequences that own blocks in them."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.kv.sequences import SequenceTable
from aegaeon_sidecar.memory.tiers import Tier


@dataclass(slots=True)
class Reuse:
    """Tokens of prompts since the start: all of them, and those reused from the device and from the host."""

    prompt_tokens: int = 0
    on_device: int = 0
    on_host: int = 0


@dataclass(slots=True)
class KvMemory:
    """Guarded by `monitor`. The device tier's slabs hold weights, too (weights/shared_weights.py)."""

    monitor: Monitor
    device: Tier
    host: Tier
    sequences: SequenceTable
    prefix_reuse: bool = True
    reuse: Reuse = field(default_factory=Reuse)
