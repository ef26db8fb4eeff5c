"""What the lanes share: memory, sequences, models and the program, behind one lock.

The lock is held for bookkeeping alone, never during a step or a copy. Whoever changes something that another lane may
wait for notifies. What a command has changed is told once, by its end: every lane that is woken costs the others time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Union

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.memory.tiers import Tier
from aegaeon_sidecar.plan import TurnPlan
from aegaeon_sidecar.program import Item, Program
from aegaeon_sidecar.sequences import SequenceTable
from aegaeon_sidecar.weights.models import Model

Work = Union[pb.Load, pb.Unload, pb.SwapOut, pb.SwapIn, pb.Adopt, TurnPlan]
Command = Item[Work]


@dataclass(slots=True)
class Reuse:
    """Tokens of prompts since the start: how many were asked for, and how many of them were found where."""

    asked: int = 0
    on_device: int = 0
    on_host: int = 0


@dataclass(slots=True)
class State:
    """The engine's memory of everything. `changed` is its lock and what waiting lanes sleep on.

    `withdrawn`: models that left the catalog and still have slabs; `running`: commands that lanes carry out now.
    """

    device: Tier
    host: Tier
    sequences: SequenceTable
    models: dict[str, Model] = field(default_factory=dict)
    withdrawn: list[Model] = field(default_factory=list)
    program: Program[Work] = field(default_factory=Program)
    changed: threading.Condition = field(default_factory=threading.Condition)
    prefix_reuse: bool = True
    reuse: Reuse = field(default_factory=Reuse)
    running: int = 0
    stopping: bool = False

    def memory(self) -> pb.Memory:
        """What is free, for a report."""
        with self.changed:
            return pb.Memory(
                slabs_free=self.device.slabs_free,
                slabs_kept=self.device.pool.kept,
                host_slabs_free=self.host.slabs_free,
                shapes=_shapes(self.device),
                host_shapes=_shapes(self.host),
                reuse=pb.PrefixReuse(
                    prompt_tokens=self.reuse.asked,
                    device_tokens=self.reuse.on_device,
                    host_tokens=self.reuse.on_host,
                ),
            )

    def wait(self, ready: Callable[[], bool], command: Command) -> bool:
        """Sleep (lock held) until `ready`; False when the command was cancelled or the sidecar stops first."""
        self.changed.wait_for(lambda: ready() or command.cancelled or self.stopping)
        return ready() and not command.cancelled and not self.stopping

    def sleep(self, command: Command) -> bool:
        """Sleep (lock held) until something changes; False when the command was cancelled or the sidecar stops."""
        if not command.cancelled and not self.stopping:
            self.changed.wait()
        return not command.cancelled and not self.stopping

    def check(self) -> None:
        """Assert conservation of slabs and blocks in both tiers, at any time. Raises MemoryBookError or NativeError."""
        with self.changed:
            device, host = self.sequences.owned()
            models = [*self.models.values(), *self.withdrawn]
            stays = {id(model.stay): len(model.stay.slabs) for model in models if model.stay is not None}
            self.device.check(sum(stays.values()), device)
            self.host.check(0, host)


def _shapes(tier: Tier) -> list[pb.ShapeMemory]:
    return [
        pb.ShapeMemory(kv_shape=shape.kv_shape, free_blocks=shape.free_blocks, used_blocks=shape.used_blocks)
        for shape in tier.shapes()
    ]
