"""What a sidecar says of itself when it attaches: memory, models, and every sequence that it holds."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.engine.state import State
from aegaeon_sidecar.engine.wire import PLACES, ROLES, seq_of
from aegaeon_sidecar.kv.handles import make_handle
from aegaeon_sidecar.kv.sequences import Place
from aegaeon_sidecar.weights.shared_weights import shared


def hello(config: SidecarConfig, incarnation: str, started: float, segment: str, state: State) -> pb.Hello:
    """The whole picture, taken while no lane runs anything (lock held)."""
    return pb.Hello(
        instance=config.instance,
        incarnation=incarnation,
        started=started,
        node=config.node,
        role=ROLES[config.role],
        device=config.device if config.ranks == 1 else f"{config.device} x {config.ranks}",
        slab_bytes=state.kv.device.pool.slab_bytes,
        slabs=state.kv.device.pool.total,
        host_slabs=state.kv.host.pool.total,
        memory=state.memory(),
        resident=[model.name for model in state.table.models.values() if model.resident],
        models=[model.state() for model in state.table.models.values()],
        held=_held(config.node, segment, state),
        max_batch=config.max_batch,
        twins=shared(state.table),
        catalog=[model.spec for model in state.table.models.values()],
    )


def _held(node: str, segment: str, state: State) -> Iterator[pb.HeldSequence]:
    for sequence in state.kv.sequences:
        handle = None
        if sequence.place is Place.HOST:
            host, lease = state.kv.host.blocks(sequence.kv_shape), state.kv.sequences.lend(sequence)
            handle = make_handle(sequence, node, segment, host, lease)
        yield pb.HeldSequence(
            seq=seq_of(sequence.key),
            epoch=sequence.epoch,
            model=sequence.model,
            prompt_tokens=len(sequence.prompt),
            output_tokens=len(sequence.output),
            kv_tokens=sequence.kv_tokens,
            place=PLACES[sequence.place],
            handle=handle,
        )
