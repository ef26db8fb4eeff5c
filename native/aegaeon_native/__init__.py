"""Typed bindings of the native core: slabs, ranges, KV blocks, copy lanes and events (see docs/engine-memory.md)."""

from aegaeon_native._core import (
    BlockPool,
    CopyLane,
    CudaDevice,
    Event,
    EventTable,
    NativeError,
    OutOfSlabs,
    Range,
    SlabPool,
)

__all__ = [
    "BlockPool",
    "CopyLane",
    "CudaDevice",
    "Event",
    "EventTable",
    "NativeError",
    "OutOfSlabs",
    "Range",
    "SlabPool",
]
