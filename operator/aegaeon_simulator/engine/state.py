"""The state that the lanes of a modelled engine share: memory, sequences, clock, and the channel for its reports."""

from __future__ import annotations

from collections.abc import Callable

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import Memory, ModelName, SeqId
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.engine.memory import Tier, report
from aegaeon_simulator.engine.spec import EngineSpec, Sequence, Served
from aegaeon_simulator.results.usage import DeviceUsage


class EngineState:
    """One engine's state. `emit` takes its reports; a dead engine says and does nothing more."""

    def __init__(
        self, spec: EngineSpec, models: dict[ModelName, Served], clock: Clock, emit: Callable[[ev.Event], None]
    ) -> None:
        self.spec = spec
        self.models = models
        self.clock = clock
        self.alive = True
        self.device = Tier(spec.slabs, spec.slab_bytes)
        self.host = Tier(spec.host_slabs, spec.slab_bytes)
        self.resident: dict[ModelName, ModelName] = {}  # each with the name that its slabs were taken under
        self.sequences: dict[SeqId, Sequence] = {}
        self.usage = DeviceUsage(spec.device, spec.gpus)
        self._emit = emit

    def memory(self) -> Memory:
        """The memory that is free now."""
        return report(self.device, self.host)

    def say(self, event: ev.Event) -> None:
        """Report to the scheduler."""
        if self.alive:
            self._emit(event)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run the action after `seconds`, if the engine is alive then."""
        self.clock.at(self.clock.now + seconds, lambda: action() if self.alive else None)

    def drop(self, q: Sequence) -> None:
        """Free the sequence's blocks and forget it."""
        fp = self.models[q.model].footprint
        if q.blocks:
            self.device.shrink(fp, q.blocks)
        if q.host:
            self.host.shrink(fp, q.host)
        if self.sequences.get(q.seq) is q:
            del self.sequences[q.seq]
