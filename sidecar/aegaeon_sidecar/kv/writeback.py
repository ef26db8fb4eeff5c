"""Copies of cached blocks on the host, made ahead of their eviction: evicting them from the device then takes nothing.

The kv-out lane makes them while it has no command, a small piece at a time. Blocks whose sequence has left the device
are full and published, so nothing writes them; they stay free for grants, and an eviction waits for the piece that
reads them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from aegaeon_native import NativeError
from aegaeon_sidecar.domain.sticky import end_if_sticky
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.kv.writeback_queue import Chain
from aegaeon_sidecar.memory.cache_blocks import Blocks, Noted
from aegaeon_sidecar.memory.copier import Copier
from aegaeon_sidecar.memory.prefix import Name
from aegaeon_sidecar.memory.tiers import Reading

log = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
"""of one copy: what a swap-out or an eviction waits for at most, 0.4 ms at 20 GB/s"""
_SLICE = 256  # names that are looked up at a time


@dataclass(frozen=True, slots=True)
class _Piece:
    """Blocks on their way from the device to the host, which publishes them when they are there. `noted`: their
    worth."""

    chain: Chain
    names: list[Name]
    host_blocks: Blocks
    noted: Noted


class Writeback:
    """Used by the kv-out lane's thread. All but `finish` with the engine's lock held."""

    def __init__(self, kv: KvMemory, copier: Copier) -> None:
        self._queue = kv.sequences.writeback
        self._device = kv.device
        self._host = kv.host
        self._monitor = kv.monitor
        self._copier = copier
        self._piece: _Piece | None = None
        self._error: NativeError | None = None  # of the piece

    @property
    def pending(self) -> bool:
        """True while a chain waits."""
        return bool(self._queue.chains)

    def begin(self) -> bool:
        """Look at a few names of the first chain, and queue the copy of those that the host lacks; `finish` is next.

        False when no chain is left.
        """
        if not self._queue.chains:
            return False
        chain = self._queue.first()
        self._begin(chain)
        if chain.at >= len(chain.names):
            self._queue.drop()
        return True

    def _begin(self, chain: Chain) -> None:
        """A block that neither tier has ends the chain: those behind it cannot be reused."""
        names = chain.names[chain.at : chain.at + _SLICE]
        device, host = self._device.index(chain.kv_shape), self._host.index(chain.kv_shape)
        on_device, on_host = device.find(names), host.find(names)
        known = next((i for i in range(len(names)) if i not in on_device and i not in on_host), len(names))
        device.level(host, names[:known])
        missing = [i for i in range(known) if i not in on_host]
        most = max(1, PIECE_BYTES // self._device.blocks(chain.kv_shape).block_bytes)
        if len(missing) > most:
            chain.at += missing[most]
        else:
            chain.at = chain.at + known if known == len(names) else len(chain.names)
        if missing:
            chosen = missing[:most]
            self._copy(chain, [names[i] for i in chosen], np.array([on_device[i] for i in chosen], dtype=np.int32))

    def _copy(self, chain: Chain, names: list[Name], blocks: Blocks) -> None:
        """Queue a copy. Where the host has no room for blocks of their worth the chain ends."""
        worth = float(self._device.value(chain.kv_shape, blocks).mean())
        host_blocks = self._host.admit(chain.kv_shape, len(names), worth)
        if host_blocks is None:
            chain.at = len(chain.names)
            return
        noted = self._device.index(chain.kv_shape).noted(blocks)
        self._piece = _Piece(chain, names, host_blocks, noted)
        self._queue.onto = chain.kv_shape, host_blocks
        self._device.reading = Reading(chain.kv_shape, blocks, self._await)
        into, source = self._host.blocks(chain.kv_shape), self._device.blocks(chain.kv_shape)
        try:
            self._copier.queue_blocks(into, host_blocks, source, blocks)
        except NativeError as error:
            self._error = error

    def _await(self) -> None:
        """Wait for the copy for an eviction, which needs the memory that is read; `finish` sees to what it came to."""
        try:
            self._copier.finish()
        except NativeError as error:
            self._error = error

    def finish(self) -> None:
        """Wait for the piece, if one was begun: from then on the host has it. Raises DeviceLostError, EngineError."""
        if self._piece is None:
            return
        error: NativeError | None = None
        try:
            self._copier.finish()
        except NativeError as failure:
            error = failure
        with self._monitor.changed:
            error, self._error = error or self._error, None
            self._end(self._piece, error)
        if error is not None:
            end_if_sticky(error)
            log.warning("cached blocks were not copied to the host, and are lost when they are evicted: %s", error)

    def _end(self, piece: _Piece, error: NativeError | None) -> None:
        kv_shape = piece.chain.kv_shape
        if error is None:
            self._host.index(kv_shape).publish(piece.names, piece.host_blocks.tolist())
            self._host.index(kv_shape).note(piece.host_blocks, piece.noted)
        else:
            piece.chain.at = len(piece.chain.names)
        self._host.blocks(kv_shape).release(piece.host_blocks)
        self._piece = self._device.reading = self._queue.onto = None
