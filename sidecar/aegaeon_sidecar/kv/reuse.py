"""Prefix reuse at the first prefill of a sequence: blocks of its prompt that this engine still holds are not computed.

Blocks on the device are shared at once; blocks on the host are copied in while other sequences run. Shared blocks are
full ones, so they are never written to; the last token is always computed, for its logits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from aegaeon_native import Event, OutOfSlabs
from aegaeon_proto.engine.sequences import Place
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.memory.copier import Copier, await_copy

_AT_ONCE = 16  # copies in that may be under way: each takes an event


@dataclass(frozen=True, slots=True)
class Recall:
    """A copy from the host tier that brings a sequence its first `tokens` tokens. Of no command."""

    sequence: Sequence
    tokens: int
    event: Event


class Grant(Protocol):
    """Slabs that a turn may still take."""

    grant: int


class PrefixReuse:
    """Used by the compute lane's thread alone. All but `wait` and `finish` with the engine's lock held."""

    def __init__(self, kv: KvMemory, copier: Copier) -> None:
        self._kv = kv
        self._copier = copier
        self._recalls: deque[Recall] = deque()

    @property
    def pending(self) -> bool:
        """A sequence is waiting for its blocks."""
        return bool(self._recalls)

    def begin(self, sequence: Sequence, turn: Grant) -> None:
        """Reuse the cached part of the prompt for a sequence without KV, within the turn's grant.

        Afterwards it is as before, or on the device with so many tokens, or `moving` until `collect` ends the copy.
        """
        if not sequence.seed or sequence.blocks.size or sequence.scored is not None:
            return  # reused blocks have no logits
        names = sequence.named((sequence.length - 1) // sequence.block_tokens)
        on_device = self._kv.device.index(sequence.kv_shape).find(names)
        on_host = self._kv.host.index(sequence.kv_shape).find(names)
        if len(self._recalls) >= _AT_ONCE:
            on_host = {}
        if not sequence.looked:
            sequence.looked = True
            self._kv.reuse.prompt_tokens += sequence.length
        blocks = -(-sequence.length // sequence.block_tokens)
        while run := _unbroken(on_device, on_host):
            on_device = {i: block for i, block in on_device.items() if i < run}
            recalled = {i: on_host[i] for i in range(run) if i not in on_device}
            if self._take(sequence, turn, on_device, recalled, blocks):
                return
            if not on_device:
                return
            on_device = dict(list(on_device.items())[: len(on_device) // 2])  # they lie in more slabs than granted

    def _take(
        self, sequence: Sequence, turn: Grant, on_device: dict[int, int], on_host: dict[int, int], blocks: int
    ) -> bool:
        """Blocks for all of the prompt, `on_device` among them; False when they take more than a prompt is granted."""
        device = self._kv.device
        pool = device.blocks(sequence.kv_shape)
        usual = -(-blocks * pool.block_bytes // device.pool.slab_bytes) + 1
        before = pool.held_slabs
        try:
            sequence.blocks, _ = device.share(sequence.kv_shape, on_device, blocks, min(turn.grant, usual))
        except OutOfSlabs:
            return False
        turn.grant -= pool.held_slabs - before
        tokens = (len(on_device) + len(on_host)) * sequence.block_tokens
        device.count_reuse(
            sequence.kv_shape, sequence.blocks[list(on_device)], sequence.token_s * sequence.block_tokens
        )
        self._kv.reuse.on_device += len(on_device) * sequence.block_tokens
        if on_host:
            self._recall(sequence, on_host, tokens)
        else:
            self._arrived(sequence, tokens)
        return True

    def _recall(self, sequence: Sequence, on_host: dict[int, int], tokens: int) -> None:
        """Copy blocks from the host tier, which holds them for the sequence until they are in."""
        device, host = self._kv.device, self._kv.host
        sequence.host_blocks = np.fromiter(on_host.values(), dtype=np.int32)
        host.blocks(sequence.kv_shape).retain(sequence.host_blocks, host.pool.total)
        host.count_reuse(sequence.kv_shape, sequence.host_blocks, sequence.token_s * sequence.block_tokens)
        self._kv.reuse.on_host += len(on_host) * sequence.block_tokens
        sequence.moving = True
        event = self._copier.begin(
            device.blocks(sequence.kv_shape),
            sequence.blocks[list(on_host)],
            host.blocks(sequence.kv_shape),
            sequence.host_blocks,
        )
        self._recalls.append(Recall(sequence, tokens, event))

    def collect(self) -> None:
        """Copies that are over, in their order: their sequences go on."""
        while self._recalls and self._recalls[0].event.done:
            recall = self._recalls.popleft()
            sequence = recall.sequence
            sequence.moving = False
            self._kv.sequences.free_host(sequence)
            if not sequence.closed:
                self._arrived(sequence, recall.tokens)
                self._kv.sequences.publish(self._kv.device, sequence)
                self._level(sequence)
            self._kv.sequences.free_if_closed(sequence)
            self._kv.monitor.notify()

    def _level(self, sequence: Sequence) -> None:
        """Its blocks on the device are worth what those on the host are, one of whose uses this was."""
        device, host = (tier.index(sequence.kv_shape) for tier in (self._kv.device, self._kv.host))
        device.level(host, sequence.named(sequence.full_blocks))

    def wait(self) -> None:
        """Wait for the oldest copy."""
        await_copy(self._recalls[0].event)

    def finish(self) -> None:
        """Wait for all copies: after the turn nothing else would collect them."""
        while self._recalls:
            self.wait()
            with self._kv.monitor.changed:
                self.collect()

    def _arrived(self, sequence: Sequence, tokens: int) -> None:
        sequence.place = Place.DEVICE
        sequence.kv_tokens = tokens
        sequence.reused = min(tokens, len(sequence.prompt))


def _unbroken(on_device: dict[int, int], on_host: dict[int, int]) -> int:
    """The number of blocks from the first on that are on the device or on the host."""
    run = 0
    while run in on_device or run in on_host:
        run += 1
    return run
