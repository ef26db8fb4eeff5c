"""Builds Hello, the sidecar's state when it attaches: memory, models, and every sequence that it holds."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_proto.engine.ids import ModelName
from aegaeon_proto.engine.reports import Hello, InstanceUp, Role
from aegaeon_proto.engine.sequences import Held, Place
from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.engine.state import State
from aegaeon_sidecar.kv.handles import make_handle
from aegaeon_sidecar.weights.shared_weights import shared


def hello(config: SidecarConfig, device: str, incarnation: str, started: float, segment: str, state: State) -> Hello:
    """The whole picture, taken while no lane runs anything (lock held). `device`: its make."""
    models = state.table.models.values()
    up = InstanceUp(
        instance=state.program.instance,
        incarnation=incarnation,
        node=config.node,
        role=Role(config.role),
        device=device,
        slab_bytes=state.kv.device.pool.slab_bytes,
        slabs=state.kv.device.pool.total,
        host_slabs=state.kv.host.pool.total,
        max_batch=config.max_batch,
        memory=state.memory(),
        resident=tuple(ModelName(model.name) for model in models if model.resident),
        held=tuple(_held(config.node, segment, state)),
        twins=tuple((ModelName(name), ModelName(stands)) for name, stands in shared(state.table).items()),
    )
    return Hello(up, tuple(model.state() for model in models), tuple(model.spec for model in models), started)


def _held(node: str, segment: str, state: State) -> Iterator[Held]:
    for sequence in state.kv.sequences:
        handle = None
        if sequence.place is Place.HOST:
            host, lease = state.kv.host.blocks(sequence.kv_shape), state.kv.sequences.lend(sequence)
            handle = make_handle(sequence, node, segment, host, lease)
        yield Held(
            seq=sequence.key,
            epoch=sequence.epoch,
            model=ModelName(sequence.model),
            prompt_tokens=len(sequence.prompt),
            output_tokens=len(sequence.output),
            kv_tokens=sequence.kv_tokens,
            place=sequence.place,
            handle=handle,
        )
