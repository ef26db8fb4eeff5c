"""Hello, the first report of an attachment, in both directions: the scheduler reads models and catalog as messages."""

from __future__ import annotations

from collections.abc import Collection

from aegaeon_proto.codec.catalog import spec_to, state_to
from aegaeon_proto.codec.errors import ProtocolError
from aegaeon_proto.codec.fields import Fields
from aegaeon_proto.codec.memory import memory_from, memory_to
from aegaeon_proto.codec.nouns import PLACE_OF, PLACES, ROLE_OF, ROLES, handle_to, named, seq_from, seq_to
from aegaeon_proto.engine.ids import ModelName
from aegaeon_proto.engine.reports import Hello, InstanceUp
from aegaeon_proto.engine.sequences import Held
from aegaeon_proto.v1 import engine_pb2

_HELD = Fields(Held, "seq", "place", "handle")
_UP = Fields(InstanceUp, "role", "memory", "resident", "held", "twins", "beside")


def _held_from(message: engine_pb2.HeldSequence) -> Held:
    return Held(
        **_HELD.of(message),
        seq=seq_from(message.seq),
        place=named(PLACE_OF, message.place, "Hello.held.place"),
    )


def _held_to(held: Held) -> engine_pb2.HeldSequence:
    return engine_pb2.HeldSequence(
        **_HELD.of(held),
        seq=seq_to(held.seq),
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
        **_UP.of(hello),
        role=named(ROLE_OF, hello.role, f"Hello of {hello.instance}: role"),
        memory=memory_from(hello.memory),
        resident=tuple(ModelName(name) for name in hello.resident),
        held=tuple(_held_from(held) for held in hello.held if held.model not in changed),
        twins=tuple((ModelName(name), ModelName(stands)) for name, stands in sorted(hello.twins.items())),
    )


def hello_to(hello: Hello) -> engine_pb2.Report:
    """The report that is a Hello."""
    up = hello.up
    message = engine_pb2.Hello(
        **_UP.of(up),
        role=ROLES[up.role],
        memory=memory_to(up.memory),
        resident=up.resident,
        models=[state_to(state) for state in hello.models],
        held=[_held_to(held) for held in up.held],
        twins=dict(up.twins),
        catalog=[spec_to(spec) for spec in hello.catalog],
        started=hello.started,
    )
    return engine_pb2.Report(hello=message)
