"""Typed bindings of the native core: what docs/engine-memory.md calls slabs, ranges, blocks, lanes, events, ring; and
what a decode step does to its tokens."""

from aegaeon_native._core import (
    NO_TOKEN,
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
    advance,
    cpu_level,
    likeliest,
    row_product,
    row_product_supported,
    set_product_helpers,
)

__all__ = [
    "NO_TOKEN",
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
    "advance",
    "cpu_level",
    "likeliest",
    "row_product",
    "row_product_supported",
    "set_product_helpers",
]
