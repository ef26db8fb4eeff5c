"""Typed bindings of the native core: what docs/engine-memory.md calls slabs, ranges, blocks, lanes, events, ring."""

from aegaeon_native._core import (
    BlockPool,
    CopyLane,
    CudaDevice,
    Event,
    EventTable,
    FileSystemFullError,
    NativeError,
    OutOfSlabs,
    Range,
    SlabPool,
    StageRing,
)

__all__ = [
    "BlockPool",
    "CopyLane",
    "CudaDevice",
    "Event",
    "EventTable",
    "FileSystemFullError",
    "NativeError",
    "OutOfSlabs",
    "Range",
    "SlabPool",
    "StageRing",
]
