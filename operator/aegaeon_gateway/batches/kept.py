"""Files and batches of one gateway, put together: what its handlers use, and what works on them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aegaeon_gateway.batches.batches import Batches
from aegaeon_gateway.batches.files import Files
from aegaeon_gateway.batches.settings import BatchSettings
from aegaeon_gateway.batches.store import Store, open_store
from aegaeon_proto.outbound.egress import DIRECT, Egress


@dataclass(frozen=True, slots=True)
class Kept:
    """`wake`: set when there is a new batch."""

    settings: BatchSettings
    store: Store
    files: Files
    batches: Batches
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @staticmethod
    def open(settings: BatchSettings, egress: Egress = DIRECT) -> Kept:
        """`egress`: the way to the store. Raises ConfigError."""
        store = open_store(settings, egress)
        files = Files(store, settings)
        return Kept(settings, store, files, Batches(store, files, settings))
