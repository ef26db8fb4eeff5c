"""Which images may not be evicted: those of models that run, that come in, or that a queued Load will bring in."""

from __future__ import annotations

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.program import Lane
from aegaeon_sidecar.state import State


def settle_pins(state: State) -> None:
    """Pin and unpin as the program and the residents demand (lock held); call it when either has changed."""
    planned = {item.body.model for item in state.program.of(Lane.WEIGHTS) if isinstance(item.body, pb.Load)}
    for model in state.models.values():
        if model.image is None or model.range is None:  # the fetcher still holds it
            continue
        wanted = model.resident or model.moving or model.name in planned
        if wanted and not model.pinned:
            model.pinned = model.image.pin()
        elif model.pinned and not wanted:
            model.image.unpin()
            model.pinned = False
