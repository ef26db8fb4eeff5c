"""Down: what the core decides becomes a message for an engine."""

from __future__ import annotations

from collections.abc import Mapping

from aegaeon_proto.codec.commands import WRITERS, Writer, name_seq
from aegaeon_proto.v1 import engine_pb2
from aegaeon_scheduler.core import commands


def _open(out: engine_pb2.Command, body: commands.Open) -> None:
    name_seq(out.open.seq, body.seq)
    out.open.epoch, out.open.model = body.epoch, body.model


def _adopt(out: engine_pb2.Command, body: commands.Adopt) -> None:
    name_seq(out.adopt.seq, body.seq)
    out.adopt.epoch, out.adopt.slabs = body.epoch, body.slabs


_WRITERS: Mapping[type, Writer] = {**WRITERS, commands.Open: _open, commands.Adopt: _adopt}


def command_to(send: commands.Send, base: int) -> engine_pb2.Command:
    """The message of a command; the driver adds prompt and prefix to Open, the handle to Adopt."""
    out = engine_pb2.Command(id=base + send.id, reason=send.reason)
    if send.after:
        out.after.extend([base + id_ for id_ in send.after])
    _WRITERS[type(send.body)](out, send.body)
    if isinstance(send.body, commands.Amend):
        out.amend.turn += base
    elif isinstance(send.body, commands.Cancel):
        out.cancel.id += base
    return out
