"""A modelled engine's side of the protocol: messages as commands of the simulator's engine, its events as reports.

Ids stay those of the wire. The handle of a copy names the engine and the command that made it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aegaeon_proto.codec import commands as codec
from aegaeon_proto.codec.reports import report_to as message_of
from aegaeon_proto.engine import commands
from aegaeon_proto.engine.catalog import ModelPhase, ModelState
from aegaeon_proto.engine.reports import Hello
from aegaeon_proto.engine.sequences import KvHandle
from aegaeon_proto.v1 import engine_pb2
from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import CommandId, InstanceId

_BLOCKS_OF_A_HANDLE = 64


def command_from(instance: InstanceId, message: engine_pb2.Command) -> cmd.Send | None:
    """None for what a modelled engine has no use for: the catalog."""
    command = codec.command_from(message)
    body = _body(command.body)
    return body and cmd.Send(instance, command.id, body, command.after, command.reason)


def _body(body: commands.Body | None) -> cmd.Body | None:
    match body:
        case commands.Open(seq, epoch, model):
            return cmd.Open(seq, epoch, model)
        case commands.Adopt(seq, epoch, handle, slabs):
            source, _, id = handle.segment.rpartition("/")
            return cmd.Adopt(seq, epoch, InstanceId(source), CommandId(int(id)), slabs)
        case commands.Catalog() | None:
            return None
    return body


def hello_to(up: ev.InstanceUp, models: list[ev.ModelReported], started: float) -> engine_pb2.Report:
    """The first report of an engine that holds no sequence."""
    states = tuple(
        ModelState(state.model, ModelPhase(state.phase.value), footprint=state.footprint) for state in models
    )
    return message_of(Hello(replace(up, resident=(), held=(), twins=()), states, (), started))


def report_to(event: Any) -> engine_pb2.Report:
    """A report of a modelled engine, Hello aside."""
    if isinstance(event, ev.CommandDone) and event.kv_tokens:
        segment, blocks = f"{event.instance}/{event.id}", tuple(range(_BLOCKS_OF_A_HANDLE))
        event = replace(event, handle=KvHandle("", segment, blocks, "", 0, event.kv_tokens, (), (), 0, 0))
    return message_of(event)
