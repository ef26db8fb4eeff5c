"""The rules for every KV copy of a sequence (docs/engine-memory.md): begin, allocate, copy, end.

(1) A sequence is on the device only when its copy is done; (2) a copy waits for the previous copy of its sequence;
(3) blocks are freed when the copy that touches them is over, never earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from aegaeon_native import BlockPool, OutOfSlabs, SlabPool
from aegaeon_proto.engine.ids import SeqId
from aegaeon_proto.engine.sequences import KvHandle, Place
from aegaeon_sidecar.domain.errors import CancelledError, NoMemoryError
from aegaeon_sidecar.domain.program import AnyCommand
from aegaeon_sidecar.kv.handles import check_blocks, check_handle, make_handle
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.memory.cache_blocks import Blocks
from aegaeon_sidecar.memory.segments import Attachments
from aegaeon_sidecar.memory.tiers import Tier


class KvMoves:
    """Used by the kv-out and the kv-in lane; all with the engine's lock held."""

    def __init__(self, kv: KvMemory, node: str, segment: str, attachments: Attachments) -> None:
        self._kv = kv
        self._node = node
        self._segment = segment
        self._attachments = attachments

    @contextmanager
    def borrowed(self, sequence: Sequence, handle: KvHandle, block_bytes: int) -> Iterator[SlabPool]:
        """The segment that holds a handle's blocks, which stay as they are meanwhile. It may be left without the lock.

        Raises UnknownError or StaleError for a handle that is of another sequence, or over.
        """
        check_handle(sequence, handle, self._node)
        with self._attachments.reading(handle.segment, handle.lease_slot, handle.lease_generation) as source:
            check_blocks(handle, source, block_bytes)
            yield source

    def begin(self, command: AnyCommand, key: SeqId, epoch: int) -> Sequence:
        """The sequence, once no step or copy touches it. Raises UnknownError, StaleError, CancelledError."""
        sequence = self._kv.sequences.require(key, epoch)
        sequence.queued_moves += 1  # no further step takes it: else steps could follow each other endlessly
        free = self._kv.monitor.wait(lambda: not (sequence.busy or sequence.moving), command)
        sequence.queued_moves -= 1
        if not free:
            raise CancelledError(f"the copy of {key.request}/{key.choice} was cancelled")
        return self._kv.sequences.require(key, epoch)

    def end(self, command: AnyCommand, sequence: Sequence, before: Place, after: Place) -> None:
        """The copy is over: the tier that is left gives its blocks back, or the other one when it was cancelled."""
        kept = before if command.cancelled else after
        self.stays(sequence, kept)
        if kept is not Place.NONE:
            self._kv.sequences.publish(self._kv.host if kept is Place.HOST else self._kv.device, sequence)
        closed = sequence.closed
        self._kv.sequences.free_if_closed(sequence)
        if command.cancelled or closed:
            raise CancelledError(f"the copy of {sequence.key.request}/{sequence.key.choice} was cancelled")

    def stays(self, sequence: Sequence, kept: Place) -> None:
        """End the moves of a sequence, which stays in the tier `kept`; its blocks in the other tier are released."""
        sequence.moving = False
        if kept is not Place.DEVICE:
            self._kv.sequences.free_device(sequence)
        if kept is not Place.HOST:
            self._kv.sequences.free_host(sequence)
        sequence.place = kept

    def reserve(
        self, tier: Tier, sequence: Sequence, count: int, full: int, grant: int
    ) -> tuple[Blocks, NDArray[np.intp]]:
        """`count` blocks of a tier for a sequence, and which of them are to be copied: the others hold it already.

        Of the first `full`, those that the tier holds under the sequence's names are shared, as far as the grant
        reaches. Raises NoMemoryError.
        """
        names = sequence.named(min(full, sequence.length // sequence.block_tokens)) if sequence.seed else []
        published = tier.index(sequence.kv_shape).find(names)
        while True:
            try:
                return tier.share(sequence.kv_shape, published, count, grant)
            except OutOfSlabs as error:
                if not published:
                    raise NoMemoryError(
                        f"{count} blocks do not fit the {tier.name} tier; {tier.slabs_free} slabs are free: {error}"
                    ) from error
            published = dict(list(published.items())[: len(published) // 2])

    def pools(self, sequence: Sequence) -> tuple[BlockPool, BlockPool]:
        """The blocks of its shape on the device and on the host."""
        return self._kv.device.blocks(sequence.kv_shape), self._kv.host.blocks(sequence.kv_shape)

    def handle(self, sequence: Sequence) -> KvHandle:
        """The handle by which another sidecar finds its blocks on this host."""
        host, lease = self._kv.host.blocks(sequence.kv_shape), self._kv.sequences.lend(sequence)
        return make_handle(sequence, self._node, self._segment, host, lease)
