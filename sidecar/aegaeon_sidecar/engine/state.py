"""The state of an engine, put together from its owners: KV memory, models, and the scheduler's program.

Lower layers get only the owner that they need (KvMemory, ModelTable). The lanes get all of it, as their commands use
all owners. One lock guards everything: `monitor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from aegaeon_proto.engine.commands import Adopt, Load, SwapIn, SwapOut, Unload
from aegaeon_proto.engine.reports import Memory, PrefixReuse
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.domain.program import Item, Lane, Program
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.memory.cache_blocks import Blocks
from aegaeon_sidecar.memory.outside import Outside
from aegaeon_sidecar.memory.tiers import Owned
from aegaeon_sidecar.weights.pins import lock_ahead, update_pins
from aegaeon_sidecar.weights.table import ModelTable

Work = Union[Load, Unload, SwapOut, SwapIn, Adopt, Turn]
Queued = Item[Work]


@dataclass(slots=True)
class State:
    """`running`: commands that lanes carry out now; `scratch`: KV shape and blocks of a turn that warms up, which no
    sequence has."""

    monitor: Monitor
    kv: KvMemory
    table: ModelTable
    outside: Outside
    program: Program[Work]
    running: int = 0
    scratch: tuple[str, Blocks] | None = None

    def memory(self) -> Memory:
        """The free memory, for a report."""
        with self.monitor.changed:
            kv = self.kv
            return Memory(
                slabs_free=kv.device.slabs_free,
                slabs_kept=kv.device.pool.kept,
                host_slabs_free=kv.host.slabs_free,
                shapes=kv.device.shapes(),
                host_shapes=kv.host.shapes(),
                reuse=PrefixReuse(
                    prompt_tokens=kv.reuse.prompt_tokens,
                    device_tokens=kv.reuse.on_device,
                    host_tokens=kv.reuse.on_host,
                ),
                outside=self.outside.last,
            )

    def update_pins(self) -> None:
        """Pin the images that the program and the residents need (lock held); call it when either has changed."""
        loads = [item.body for item in self.program.of(Lane.WEIGHTS) if isinstance(item.body, Load)]
        update_pins(self.table, {load.model for load in loads})
        lock_ahead(self.table, {load.model for load in loads if not load.twin})

    def check(self) -> None:
        """Assert conservation of slabs and blocks in both tiers, at any time. Raises MemoryBookError or NativeError."""
        with self.monitor.changed:
            device, host = self.kv.sequences.owned()
            if self.scratch is not None:
                kv_shape, blocks = self.scratch
                owned = device.setdefault(kv_shape, Owned())
                owned.blocks += blocks.tolist()
                owned.writable += blocks.tolist()
            slabs = {
                id(model.weights): len(model.weights.slabs) for model in self.table.all if model.weights is not None
            }
            self.kv.device.check(sum(slabs.values()), device)
            self.kv.host.check(0, host)
