"""Down: what the core decides becomes a message for a sidecar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aegaeon_proto.v1 import engine_pb2, model_pb2
from aegaeon_scheduler.core import commands
from aegaeon_scheduler.core.domain import SeqId


def _name(out: model_pb2.SeqId, seq: SeqId) -> None:
    out.request, out.choice = seq


def _load(out: engine_pb2.Command, body: commands.Load) -> None:
    out.load.model, out.load.slabs, out.load.past_host = body.model, body.slabs, body.past_host
    out.load.twin, out.load.identity = body.twin or "", body.identity


def _unload(out: engine_pb2.Command, body: commands.Unload) -> None:
    out.unload.model = body.model


def _swap_out(out: engine_pb2.Command, body: commands.SwapOut) -> None:
    _name(out.swap_out.seq, body.seq)
    out.swap_out.epoch = body.epoch


def _swap_in(out: engine_pb2.Command, body: commands.SwapIn) -> None:
    _name(out.swap_in.seq, body.seq)
    out.swap_in.epoch, out.swap_in.slabs = body.epoch, body.slabs


def _adopt(out: engine_pb2.Command, body: commands.Adopt) -> None:
    _name(out.adopt.seq, body.seq)
    out.adopt.epoch, out.adopt.slabs = body.epoch, body.slabs


def _turn(out: engine_pb2.Command, body: commands.Turn) -> None:
    turn = out.turn
    turn.model, turn.steps, turn.slabs, turn.warm_up = body.model, body.steps, body.slabs, body.warm_up
    for part in body.prefill:
        message = turn.prefill.add()
        _name(message.seq, part.seq)
        message.tokens = part.tokens
    for seq in body.decode:
        _name(turn.decode.add(), seq)


def _open(out: engine_pb2.Command, body: commands.Open) -> None:
    _name(out.open.seq, body.seq)
    out.open.epoch, out.open.model = body.epoch, body.model


def _close(out: engine_pb2.Command, body: commands.Close) -> None:
    _name(out.close.seq, body.seq)
    out.close.epoch = body.epoch


def _amend(out: engine_pb2.Command, body: commands.Amend) -> None:
    amend = out.amend
    amend.turn, amend.slabs = body.turn, body.slabs
    if body.steps is not None:
        amend.steps = body.steps
    for seq in body.join:
        _name(amend.join.add(), seq)
    for seq in body.leave:
        _name(amend.leave.add(), seq)


def _cancel(out: engine_pb2.Command, body: commands.Cancel) -> None:
    out.cancel.id = body.id


def _fetch(out: engine_pb2.Command, body: commands.Fetch) -> None:
    out.fetch.model, out.fetch.identity = body.model, body.identity


_WRITERS: Mapping[type, Callable[[engine_pb2.Command, Any], None]] = {
    commands.Load: _load,
    commands.Unload: _unload,
    commands.SwapOut: _swap_out,
    commands.SwapIn: _swap_in,
    commands.Adopt: _adopt,
    commands.Turn: _turn,
    commands.Open: _open,
    commands.Close: _close,
    commands.Amend: _amend,
    commands.Cancel: _cancel,
    commands.Fetch: _fetch,
}


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
