"""A KvHandle locates a sequence's blocks in a node's segment, so that another sidecar can copy them.

Block ids count within the source's range of one shape; the handle's slab list gives the slab of the segment at each
position of that range. Another sidecar cannot resolve the ids without it.
"""

from __future__ import annotations

from math import gcd

import numpy as np
from numpy.typing import NDArray

from aegaeon_native import BlockPool, Event, SlabPool
from aegaeon_proto.engine.sequences import KvHandle
from aegaeon_sidecar.domain.errors import StaleError, UnknownError
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.memory.cache_blocks import Blocks
from aegaeon_sidecar.memory.copier import Units


def make_handle(sequence: Sequence, node: str, segment: str, host: BlockPool, lease: Event) -> KvHandle:
    """The handle of a sequence whose KV cache is on the host, lent by `lease`."""
    slot, generation = lease.handle
    return KvHandle(
        node=node,
        segment=segment,
        blocks=tuple(sequence.host_blocks.tolist()),
        kv_shape=sequence.kv_shape,
        epoch=sequence.epoch,
        kv_tokens=sequence.kv_tokens,
        output=tuple(sequence.output),
        slabs=tuple(max(slab, 0) for slab in host.slabs),
        lease_slot=slot,
        lease_generation=generation,
    )


def check_handle(sequence: Sequence, handle: KvHandle, node: str) -> None:
    """Check that this sequence can continue from this handle on this node. Raises StaleError or UnknownError."""
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


def check_blocks(handle: KvHandle, source: SlabPool, block_bytes: int) -> None:
    """Check that every block lies in slabs that the handle names and the segment has. Raises UnknownError."""
    reach = (max(handle.blocks, default=-1) + 1) * block_bytes
    if reach > len(handle.slabs) * source.slab_bytes or any(slab >= source.total for slab in handle.slabs):
        raise UnknownError(f"the handle names blocks outside the slabs of segment {handle.segment}")


def units(handle: KvHandle, source: SlabPool, into: BlockPool, blocks: Blocks, new: NDArray[np.intp]) -> Units:
    """The `new` blocks of the handle, from their place in the source's segment to ours: one copy for all."""
    of, to = np.array(handle.blocks, dtype=np.int64)[new], blocks[new]
    nbytes = gcd(into.block_bytes, source.slab_bytes)
    pieces = np.arange(into.block_bytes // nbytes)
    from_units = (of[:, None] * pieces.size + pieces).ravel()
    position, within = np.divmod(from_units, source.slab_bytes // nbytes)
    lies = np.array(handle.slabs, dtype=np.int64)[position] * (source.slab_bytes // nbytes) + within
    to_units = (to[:, None].astype(np.int64) * pieces.size + pieces).ravel()
    return Units(nbytes, to_units.astype(np.int32), lies.astype(np.int32))


def resume(sequence: Sequence, handle: KvHandle) -> None:
    """The KV copy is complete: the sequence continues at the source's position."""
    for token in handle.output[len(sequence.output) :]:
        sequence.output.append(token)
        sequence.sampler.accept(token)
    sequence.kv_tokens = handle.kv_tokens
