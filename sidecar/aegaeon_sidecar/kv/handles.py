"""A KvHandle says where a sequence's blocks lie in a node's segment, so that another sidecar can copy them.

Block ids count within the source's range of one shape; the handle's slabs say which slab of the segment is at each
position of that range. Ids of one sidecar mean nothing to another without them.
"""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_native import BlockPool, Event, SlabPool
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.errors import StaleError, UnknownError
from aegaeon_sidecar.sequences import Blocks, Sequence


def make_handle(sequence: Sequence, node: str, segment: str, host: BlockPool, lease: Event) -> pb.KvHandle:
    """The handle of a sequence whose KV cache is on the host, lent by `lease`."""
    slot, generation = lease.handle
    return pb.KvHandle(
        node=node,
        segment=segment,
        blocks=sequence.host_blocks.tolist(),
        kv_shape=sequence.kv_shape,
        epoch=sequence.epoch,
        kv_tokens=sequence.kv_tokens,
        output=sequence.output,
        slabs=[max(slab, 0) for slab in host.slabs],
        lease_slot=slot,
        lease_generation=generation,
    )


def check_handle(sequence: Sequence, handle: pb.KvHandle, node: str) -> None:
    """Whether this sequence may go on from this handle here. Raises StaleError or UnknownError."""
    name = f"{sequence.key.request}/{sequence.key.choice}"
    if handle.epoch != sequence.epoch:
        raise StaleError(f"the handle of {name} is of epoch {handle.epoch}, the sequence of {sequence.epoch}")
    if handle.node != node:
        raise UnknownError(f"the handle of {name} is of node {handle.node}, this is {node}; adopt it there")
    if handle.kv_shape != sequence.kv_shape:
        raise UnknownError(f"the handle of {name} has KV shape {handle.kv_shape}, its model {sequence.kv_shape}")
    if list(handle.output[: len(sequence.output)]) != sequence.output:
        raise UnknownError(f"the handle of {name} does not continue the prefix it was opened with")
    if handle.kv_tokens > len(handle.blocks) * sequence.block_tokens:
        raise UnknownError(f"the handle of {name} has {handle.kv_tokens} tokens in {len(handle.blocks)} blocks")


def check_blocks(handle: pb.KvHandle, source: SlabPool, block_bytes: int) -> None:
    """Whether every block lies in slabs that the handle names and the segment has. Raises UnknownError."""
    reach = (max(handle.blocks, default=-1) + 1) * block_bytes
    if reach > len(handle.slabs) * source.slab_bytes or any(slab >= source.total for slab in handle.slabs):
        raise UnknownError(f"the handle names blocks outside the slabs of segment {handle.segment}")


def pieces(handle: pb.KvHandle, source: SlabPool, block_bytes: int, to: Blocks) -> Iterator[tuple[int, int, int]]:
    """(offset in the destination's range, source address, bytes) of every copy; a block may cross slab borders."""
    slab_bytes = source.slab_bytes
    for block, target in zip(handle.blocks, to.tolist(), strict=True):
        start, done = block * block_bytes, 0
        while done < block_bytes:
            position, within = divmod(start + done, slab_bytes)
            nbytes = min(block_bytes - done, slab_bytes - within)
            yield target * block_bytes + done, source.address + handle.slabs[position] * slab_bytes + within, nbytes
            done += nbytes


def resume(sequence: Sequence, handle: pb.KvHandle) -> None:
    """Its KV is in: it goes on where the source left off."""
    for token in handle.output[len(sequence.output) :]:
        sequence.output.append(token)
        sequence.sampler.accept(token)
    sequence.kv_tokens = handle.kv_tokens
