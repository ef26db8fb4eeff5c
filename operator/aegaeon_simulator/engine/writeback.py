"""Copies of cached blocks on the host, made ahead of their eviction as in a sidecar (kv/writeback.py): in pieces, while
the copying lanes have nothing to do."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from aegaeon_scheduler.core.domain import ModelName
from aegaeon_simulator.engine.lanes import Lanes
from aegaeon_simulator.engine.links import Link
from aegaeon_simulator.engine.spec import Sequence
from aegaeon_simulator.engine.state import EngineState
from aegaeon_simulator.workload.content import Content

PIECE_BYTES = 64 << 20
"""of one copy: eight pieces of a sidecar's, for fewer events"""


@dataclass(frozen=True, slots=True)
class _Chain:
    """The leading blocks of a sequence that left the device."""

    model: ModelName
    content: Content
    blocks: int


class Writeback:
    """The chains that wait, the one that left first at the front, and the copy under way."""

    def __init__(self, state: EngineState, lanes: Lanes, link: Link) -> None:
        self._state = state
        self._lanes = lanes
        self._link = link
        self._chains: deque[_Chain] = deque()
        self._copies = False

    def add(self, q: Sequence) -> None:
        """A sequence has left the device."""
        if q.content is not None:
            per = self._state.models[q.model].footprint.kv_block_tokens
            self._chains.append(_Chain(q.model, q.content, q.kv // per))
            self.go_on()

    def go_on(self) -> None:
        """Begin the next piece where the lanes leave time for it."""
        while self._chains and not self._copies and not self._lanes.copying():
            chain = self._chains[0]
            missing = self._missing(chain)
            if missing:
                self._copy(chain, missing)
            else:
                per, host = self._state.models[chain.model].footprint.kv_block_tokens, self._state.host.cache
                host.level(self._state.device.cache, chain.content, per, chain.blocks)
                self._chains.popleft()

    def _missing(self, chain: _Chain) -> int:
        """Blocks of a chain that the host lacks."""
        per = self._state.models[chain.model].footprint.kv_block_tokens
        return self._state.host.cache.lacks(self._state.device.cache, chain.content, per, chain.blocks)

    def _copy(self, chain: _Chain, missing: int) -> None:
        """Copy a piece. Where the host has no room for it, as what it has is worth more, the chain ends."""
        served = self._state.models[chain.model]
        fp = served.footprint
        blocks = min(missing, max(1, PIECE_BYTES // fp.kv_block_bytes))
        device, host = self._state.device, self._state.host
        per, now = fp.kv_block_tokens, device.now()
        host.cache.level(device.cache, chain.content, per, chain.blocks)
        value = device.cache.mean_value(host.cache, chain.content, per, chain.blocks, blocks, now)
        if not host.admit(blocks, fp.kv_block_bytes, value):
            self._chains.popleft()
            return

        def done() -> None:
            self._copies = False
            if self._state.alive:
                host.cache.copy(
                    device.cache, chain.content, fp.kv_block_tokens, fp.kv_block_bytes, chain.blocks, blocks
                )
                host.evict()
                if self._missing(chain) >= missing:
                    self._chains.popleft()
                self.go_on()

        self._copies = True
        self._link.copy(blocks * fp.kv_block_bytes, served.latency.kv_bytes_per_s, done)
