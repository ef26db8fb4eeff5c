"""The state that the lanes of a modelled engine share: memory, sequences, clock, and the channel for its reports."""

from __future__ import annotations

from collections.abc import Callable

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import Memory, ModelName, Place, SeqId
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.engine.memory import Tier, report
from aegaeon_simulator.engine.prefix import find
from aegaeon_simulator.engine.spec import EngineSpec, Running, Sequence, Served, part_s
from aegaeon_simulator.results.usage import DeviceUsage


class EngineState:
    """One engine's state. `emit` takes its reports; a dead engine says and does nothing more.

    `cached`: is called with a sequence whose blocks stay cached on the device.
    """

    def __init__(
        self,
        spec: EngineSpec,
        models: dict[ModelName, Served],
        clock: Clock,
        emit: Callable[[ev.Event], None],
        cached: Callable[[Sequence], None],
    ) -> None:
        self.spec = spec
        self.models = models
        self.clock = clock
        self.alive = True
        self.device = Tier(spec.slabs, spec.slab_bytes, lambda: clock.now)
        self.host = Tier(spec.host_slabs, spec.slab_bytes, lambda: clock.now)
        self.resident: dict[ModelName, ModelName] = {}  # each with the name that its slabs were taken under
        self.sequences: dict[SeqId, Sequence] = {}
        self.usage = DeviceUsage(spec.device, spec.gpus)
        self._emit, self._cached = emit, cached

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

    def grow(self, turn: Running, q: Sequence, tokens: int) -> bool:
        """Take blocks for so many more tokens from the turn's grant; False when it has not enough."""
        fp = self.models[q.model].footprint
        blocks = -(-(q.kv + tokens) // fp.kv_block_tokens) - q.blocks
        if blocks <= 0:
            return True
        taken = self.device.grow(fp, blocks, turn.slabs)
        if taken is None:
            return False
        turn.slabs -= taken
        q.blocks += blocks
        return True

    def grow_ahead(self, turn: Running, batch: list[Sequence], steps: int) -> int:
        """Take blocks for so many steps; fewer steps where the grant ends before."""
        per = self.models[turn.body.model].footprint.kv_block_tokens
        for q in batch:
            if not self.grow(turn, q, steps):
                steps = q.blocks * per - q.kv
        return steps

    def reuse(self, q: Sequence) -> float:
        """Begin a prompt behind what is cached of it in both tiers; returns the seconds of the copy from the host."""
        if q.content is None or q.place is not Place.NONE or q.kv or not self.spec.prefix_reuse:
            return 0.0
        served = self.models[q.model]
        per, most = served.footprint.kv_block_tokens, (q.prompt + q.output - 1) // served.footprint.kv_block_tokens
        on_device = find((self.device.cache,), q.content, per, most)
        run = find((self.device.cache, self.host.cache), q.content, per, most)
        q.kv = run * per
        self.keep_in(self.device, q)
        self.device.cache.level(self.host.cache, q.content, per, run)
        self.device.cache.reused(q.content, per, run)
        self.usage.reused_tokens += q.kv
        return (run - on_device) * served.footprint.kv_block_bytes / served.latency.kv_bytes_per_s

    def keep_in(self, tier: Tier, q: Sequence) -> None:
        """The sequence has blocks in this tier: others find those that are full."""
        if q.content is not None:
            fp = self.models[q.model].footprint
            tier.cache.hold(q.seq, q.content, fp.kv_block_tokens, fp.kv_block_bytes)
            tier.cache.publish(q.seq, q.kv // fp.kv_block_tokens)

    def leave(self, tier: Tier, q: Sequence) -> None:
        """The sequence gives its blocks in this tier back: they stay cached."""
        served, tokens = self.models[q.model], q.prompt + q.output
        per = served.footprint.kv_block_tokens
        token_s = part_s(served.latency, 0, tokens) / tokens
        tier.cache.release(q.seq, q.kv // per, self.clock.now, token_s * per)
        if tier is self.device:
            self._cached(q)

    def drop(self, q: Sequence) -> None:
        """Free the sequence's blocks and forget it."""
        fp = self.models[q.model].footprint
        if q.content is not None:
            self.leave(self.device, q)
            self.leave(self.host, q)
        if q.blocks:
            self.device.shrink(fp, q.blocks)
        if q.host:
            self.host.shrink(fp, q.host)
        if self.sequences.get(q.seq) is q:
            del self.sequences[q.seq]
