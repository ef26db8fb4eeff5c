"""Memory that is free, as reports say it, in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aegaeon_proto.engine.ids import KvShape
from aegaeon_proto.engine.reports import Memory, OutsideSlabs, PrefixReuse, ShapeMemory
from aegaeon_proto.v1 import engine_pb2


def _shapes_from(messages: Iterable[engine_pb2.ShapeMemory]) -> dict[KvShape, ShapeMemory]:
    return {KvShape(m.kv_shape): ShapeMemory(m.free_blocks, m.used_blocks) for m in messages}


def _shapes_to(shapes: Mapping[KvShape, ShapeMemory]) -> list[engine_pb2.ShapeMemory]:
    return [
        engine_pb2.ShapeMemory(kv_shape=shape, free_blocks=m.free_blocks, used_blocks=m.used_blocks)
        for shape, m in shapes.items()
    ]


def memory_from(message: engine_pb2.Memory) -> Memory:
    """Decodes a message of free memory."""
    reuse, outside = message.reuse, message.outside
    return Memory(
        message.slabs_free,
        message.host_slabs_free,
        _shapes_from(message.shapes),
        _shapes_from(message.host_shapes),
        PrefixReuse(reuse.prompt_tokens, reuse.device_tokens, reuse.host_tokens),
        message.slabs_kept,
        OutsideSlabs(outside.reserved_bytes, outside.used_bytes, outside.peak_bytes),
    )


def memory_to(memory: Memory) -> engine_pb2.Memory:
    """The message of what is free."""
    reuse, outside = memory.reuse, memory.outside
    return engine_pb2.Memory(
        slabs_free=memory.slabs_free,
        host_slabs_free=memory.host_slabs_free,
        shapes=_shapes_to(memory.shapes),
        host_shapes=_shapes_to(memory.host_shapes),
        reuse=engine_pb2.PrefixReuse(
            prompt_tokens=reuse.prompt_tokens, device_tokens=reuse.device_tokens, host_tokens=reuse.host_tokens
        ),
        slabs_kept=memory.slabs_kept,
        outside=engine_pb2.OutsideSlabs(
            reserved_bytes=outside.reserved_bytes, used_bytes=outside.used_bytes, peak_bytes=outside.peak_bytes
        ),
    )
