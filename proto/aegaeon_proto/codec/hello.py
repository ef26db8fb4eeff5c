"""Hello, the first report of an attachment, in both directions: the scheduler reads models and catalog as messages."""

from __future__ import annotations

from collections.abc import Collection

from aegaeon_proto.codec.catalog import spec_to, state_to
from aegaeon_proto.codec.errors import ProtocolError
from aegaeon_proto.codec.memory import memory_from, memory_to
from aegaeon_proto.codec.nouns import PLACE_OF, PLACES, ROLE_OF, ROLES, handle_to, named, seq_from, seq_to
from aegaeon_proto.engine.ids import InstanceId, ModelName
from aegaeon_proto.engine.reports import Hello, InstanceUp
from aegaeon_proto.engine.sequences import Held
from aegaeon_proto.v1 import engine_pb2


def _held_from(message: engine_pb2.HeldSequence) -> Held:
    return Held(
        seq=seq_from(message.seq),
        epoch=message.epoch,
        model=ModelName(message.model),
        prompt_tokens=message.prompt_tokens,
        output_tokens=message.output_tokens,
        kv_tokens=message.kv_tokens,
        place=named(PLACE_OF, message.place, "Hello.held.place"),
    )


def _held_to(held: Held) -> engine_pb2.HeldSequence:
    return engine_pb2.HeldSequence(
        seq=seq_to(held.seq),
        epoch=held.epoch,
        model=held.model,
        prompt_tokens=held.prompt_tokens,
        output_tokens=held.output_tokens,
        kv_tokens=held.kv_tokens,
        place=PLACES[held.place],
        handle=handle_to(held.handle),
    )


def instance_up_from(hello: engine_pb2.Hello, changed: Collection[str] = ()) -> InstanceUp:
    """Return the engine of a Hello, without handles and without held sequences of models that have changed.

    Raises ProtocolError when it does not say who or what it is.
    """
    if not hello.instance or not hello.incarnation:
        raise ProtocolError("Hello: instance and incarnation must be set")
    return InstanceUp(
        instance=InstanceId(hello.instance),
        incarnation=hello.incarnation,
        node=hello.node,
        role=named(ROLE_OF, hello.role, f"Hello of {hello.instance}: role"),
        device=hello.device,
        slab_bytes=hello.slab_bytes,
        slabs=hello.slabs,
        host_slabs=hello.host_slabs,
        max_batch=hello.max_batch,
        memory=memory_from(hello.memory),
        resident=tuple(ModelName(name) for name in hello.resident),
        held=tuple(_held_from(held) for held in hello.held if held.model not in changed),
        twins=tuple((ModelName(name), ModelName(stands)) for name, stands in sorted(hello.twins.items())),
    )


def hello_to(hello: Hello) -> engine_pb2.Report:
    """The report that is a Hello."""
    up = hello.up
    message = engine_pb2.Hello(
        instance=up.instance,
        incarnation=up.incarnation,
        node=up.node,
        role=ROLES[up.role],
        device=up.device,
        slab_bytes=up.slab_bytes,
        slabs=up.slabs,
        host_slabs=up.host_slabs,
        memory=memory_to(up.memory),
        resident=up.resident,
        models=[state_to(state) for state in hello.models],
        held=[_held_to(held) for held in up.held],
        max_batch=up.max_batch,
        twins=dict(up.twins),
        catalog=[spec_to(spec) for spec in hello.catalog],
        started=hello.started,
    )
    return engine_pb2.Report(hello=message)
