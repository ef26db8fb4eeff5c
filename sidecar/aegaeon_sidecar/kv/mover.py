"""SwapOut, SwapIn and Adopt: one sequence's KV blocks between the device, the host, and another sidecar's host.

The rules of docs/engine-memory.md: (1) a sequence is on the device only when its copy is done; (2) a copy waits for the
one before it on the same sequence; (3) blocks are freed when the copy that touches them is over, never earlier.
"""

from __future__ import annotations

import numpy as np

from aegaeon_native import BlockPool, OutOfSlabs
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as model
from aegaeon_sidecar.copying import Copier
from aegaeon_sidecar.errors import CancelledError, NoMemoryError, UnknownError
from aegaeon_sidecar.kv.handles import check_blocks, check_handle, make_handle, pieces
from aegaeon_sidecar.memory.segments import Attachments
from aegaeon_sidecar.memory.tiers import Tier
from aegaeon_sidecar.outcome import Outcome
from aegaeon_sidecar.sequences import Blocks, Place, SeqKey, Sequence
from aegaeon_sidecar.state import Command, State

_ALL = 2**31 - 1


class KvMover:
    """The kv-out lane runs `swap_out`, the kv-in lane `swap_in` and `adopt`, each with a copier of its own."""

    def __init__(
        self, state: State, node: str, segment: str, attachments: Attachments, out: Copier, into: Copier
    ) -> None:
        self._state = state
        self._node = node
        self._segment = segment
        self._attachments = attachments
        self._out = out
        self._into = into

    def swap_out(self, command: Command, swap: pb.SwapOut) -> Outcome:
        """Device to host; the device blocks are free when it is done. Raises the errors of `_begin`, NoMemoryError."""
        with self._state.changed:
            sequence = self._begin(command, swap.seq, swap.epoch)
            if sequence.place is Place.HOST:
                return Outcome(handle=self._handle(sequence))
            if sequence.place is Place.NONE:
                raise UnknownError(f"sequence {swap.seq.request}/{swap.seq.choice} has no KV cache to move")
            device, host = self._pools(sequence)
            sequence.host_blocks = _allocate(self._state.host, host, sequence.blocks.size, _ALL)
            sequence.moving = True
        self._out.copy_blocks(
            command, host.address, device.address, host.block_bytes, sequence.host_blocks, sequence.blocks
        )
        self._out.finish()
        with self._state.changed:
            self._end(command, sequence, Place.DEVICE, Place.HOST)
            return Outcome(nbytes=sequence.host_blocks.size * host.block_bytes, handle=self._handle(sequence))

    def swap_in(self, command: Command, swap: pb.SwapIn) -> Outcome:
        """This sidecar's host to its device, mapping at most `swap.slabs` further slabs; the host blocks are freed."""
        with self._state.changed:
            sequence = self._begin(command, swap.seq, swap.epoch)
            if sequence.place is Place.DEVICE:
                return Outcome()
            if sequence.place is Place.NONE:
                raise UnknownError(f"sequence {swap.seq.request}/{swap.seq.choice} has no KV cache on the host")
            device, host = self._pools(sequence)
            sequence.blocks = _allocate(self._state.device, device, sequence.host_blocks.size, swap.slabs)
            sequence.moving = True
        self._into.copy_blocks(
            command, device.address, host.address, host.block_bytes, sequence.blocks, sequence.host_blocks
        )
        self._into.finish()
        with self._state.changed:
            self._end(command, sequence, Place.HOST, Place.DEVICE)
        return Outcome(nbytes=sequence.blocks.size * host.block_bytes)

    def adopt(self, command: Command, adopt: pb.Adopt) -> Outcome:
        """Another sidecar's host blocks to this device. The source keeps its copy until it is sent Close."""
        handle = adopt.handle
        with self._state.changed:
            sequence = self._begin(command, adopt.seq, adopt.epoch)
            if sequence.place is not Place.NONE:
                raise UnknownError(f"sequence {adopt.seq.request}/{adopt.seq.choice} has its KV cache here already")
            device, _ = self._pools(sequence)
            check_handle(sequence, handle, self._node)
            source = self._attachments.pool(handle.segment)
            check_blocks(handle, source, device.block_bytes)
            sequence.blocks = _allocate(self._state.device, device, len(handle.blocks), adopt.slabs)
            sequence.moving = True
        for offset, address, nbytes in pieces(handle, source, device.block_bytes, sequence.blocks):
            self._into.copy(command, device.address + offset, address, nbytes)
        self._into.finish()
        with self._state.changed:
            self._end(command, sequence, Place.NONE, Place.DEVICE)
            for token in handle.output[len(sequence.output) :]:
                sequence.output.append(token)
                sequence.sampler.accept(token)
            sequence.kv_tokens = handle.kv_tokens
        return Outcome(nbytes=len(handle.blocks) * device.block_bytes)

    def _begin(self, command: Command, seq: model.SeqId, epoch: int) -> Sequence:
        """The sequence, once no step or copy touches it. Raises UnknownError, StaleError, CancelledError."""
        key = SeqKey(seq.request, seq.choice)
        sequence = self._state.sequences.require(key, epoch)
        sequence.wanted += 1  # no further step takes it: else steps could follow each other for ever
        free = self._state.wait(lambda: not (sequence.busy or sequence.moving), command)
        sequence.wanted -= 1
        if not free:
            self._state.changed.notify_all()
            raise CancelledError(f"the copy of {seq.request}/{seq.choice} was cancelled")
        return self._state.sequences.require(key, epoch)

    def _end(self, command: Command, sequence: Sequence, before: Place, after: Place) -> None:
        """The copy is over: the tier that is left gives its blocks back, or the other one when it was cancelled."""
        sequence.moving = False
        kept = before if command.cancelled else after
        if kept is not Place.DEVICE:
            self._state.sequences.free_device(sequence)
        if kept is not Place.HOST:
            self._state.sequences.free_host(sequence)
        sequence.place = kept
        closed = sequence.closed
        self._state.sequences.settle(sequence)
        self._state.changed.notify_all()
        if command.cancelled or closed:
            raise CancelledError(f"the copy of {sequence.key.request}/{sequence.key.choice} was cancelled")

    def _pools(self, sequence: Sequence) -> tuple[BlockPool, BlockPool]:
        return self._state.device.blocks(sequence.kv_shape), self._state.host.blocks(sequence.kv_shape)

    def _handle(self, sequence: Sequence) -> pb.KvHandle:
        return make_handle(sequence, self._node, self._segment, self._state.host.blocks(sequence.kv_shape))


def _allocate(tier: Tier, blocks: BlockPool, count: int, grant: int) -> Blocks:
    try:
        return np.asarray(blocks.allocate(count, grant), dtype=np.int32)
    except OutOfSlabs as error:
        needed = blocks.slabs_for(count)
        raise NoMemoryError(
            f"{count} blocks take {needed} more slabs of the {tier.name} tier; {tier.pool.free} are free: {error}"
        ) from error
