"""Commands, in both directions.

Three are decoded alone: schedulers write Catalog, and the rest of Open and Adopt, from messages that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aegaeon_proto.codec.catalog import spec_from
from aegaeon_proto.codec.nouns import handle_from, seq_from, seqs_from
from aegaeon_proto.codec.sampling import sampling_from
from aegaeon_proto.engine.commands import (
    Adopt,
    Amend,
    Body,
    Cancel,
    Catalog,
    Close,
    Command,
    Fetch,
    Load,
    Open,
    PrefillPart,
    SwapIn,
    SwapOut,
    Turn,
    Unload,
)
from aegaeon_proto.engine.ids import CommandId, ModelName, SeqId
from aegaeon_proto.engine.sampling import PoolingParams
from aegaeon_proto.v1 import engine_pb2, model_pb2


def name_seq(out: model_pb2.SeqId, seq: SeqId) -> None:
    """Write a sequence's name where it belongs."""
    out.request, out.choice = seq


def _load_from(body: engine_pb2.Load) -> Load:
    twin = ModelName(body.twin) if body.twin else None
    return Load(ModelName(body.model), body.slabs, body.past_host, twin, body.identity)


def _load_to(out: engine_pb2.Command, body: Load) -> None:
    out.load.model, out.load.slabs, out.load.past_host = body.model, body.slabs, body.past_host
    out.load.twin, out.load.identity = body.twin or "", body.identity


def _unload_to(out: engine_pb2.Command, body: Unload) -> None:
    out.unload.model = body.model


def _swap_out_to(out: engine_pb2.Command, body: SwapOut) -> None:
    name_seq(out.swap_out.seq, body.seq)
    out.swap_out.epoch = body.epoch


def _swap_in_to(out: engine_pb2.Command, body: SwapIn) -> None:
    name_seq(out.swap_in.seq, body.seq)
    out.swap_in.epoch, out.swap_in.slabs = body.epoch, body.slabs


def _turn_from(body: engine_pb2.Turn) -> Turn:
    parts = tuple(PrefillPart(seq_from(part.seq), part.tokens) for part in body.prefill)
    counts = body.steps, body.slabs, body.warm_up, body.report_steps
    return Turn(ModelName(body.model), parts, seqs_from(body.decode), *counts)


def _turn_to(out: engine_pb2.Command, body: Turn) -> None:
    turn = out.turn
    turn.model, turn.steps, turn.slabs, turn.warm_up = body.model, body.steps, body.slabs, body.warm_up
    turn.report_steps = body.report_steps
    for part in body.prefill:
        message = turn.prefill.add()
        name_seq(message.seq, part.seq)
        message.tokens = part.tokens
    for seq in body.decode:
        name_seq(turn.decode.add(), seq)


def _open_from(body: engine_pb2.Open) -> Open:
    return Open(
        seq=seq_from(body.seq),
        epoch=body.epoch,
        model=ModelName(body.model),
        prompt=tuple(body.prompt),
        prefix=tuple(body.prefix),
        sampling=sampling_from(body.sampling, body.limits),
        max_tokens=body.limits.max_tokens,
        reply_to=body.reply_to,
        adapter=body.adapter,
        adapter_identity=body.adapter_identity,
        salt=body.salt,
        public_tokens=body.public_tokens,
        pooling=PoolingParams(tuple(body.pooling.logits_of)) if body.HasField("pooling") else None,
    )


def _close_to(out: engine_pb2.Command, body: Close) -> None:
    name_seq(out.close.seq, body.seq)
    out.close.epoch = body.epoch


def _amend_from(body: engine_pb2.Amend) -> Amend:
    steps = body.steps if body.HasField("steps") else None
    return Amend(CommandId(body.turn), steps, seqs_from(body.join), seqs_from(body.leave), body.slabs)


def _amend_to(out: engine_pb2.Command, body: Amend) -> None:
    amend = out.amend
    amend.turn, amend.slabs = body.turn, body.slabs
    if body.steps is not None:
        amend.steps = body.steps
    for seq in body.join:
        name_seq(amend.join.add(), seq)
    for seq in body.leave:
        name_seq(amend.leave.add(), seq)


def _cancel_to(out: engine_pb2.Command, body: Cancel) -> None:
    out.cancel.id = body.id


def _fetch_to(out: engine_pb2.Command, body: Fetch) -> None:
    out.fetch.model, out.fetch.identity = body.model, body.identity


READERS: Mapping[str, Callable[[Any], Body]] = {
    "load": _load_from,
    "unload": lambda body: Unload(ModelName(body.model)),
    "swap_out": lambda body: SwapOut(seq_from(body.seq), body.epoch),
    "swap_in": lambda body: SwapIn(seq_from(body.seq), body.epoch, body.slabs),
    "adopt": lambda body: Adopt(seq_from(body.seq), body.epoch, handle_from(body.handle), body.slabs),
    "turn": _turn_from,
    "open": _open_from,
    "close": lambda body: Close(seq_from(body.seq), body.epoch),
    "amend": _amend_from,
    "cancel": lambda body: Cancel(CommandId(body.id)),
    "catalog": lambda body: Catalog(tuple(map(spec_from, body.models)), body.retry),
    "fetch": lambda body: Fetch(ModelName(body.model), body.identity),
}
Writer = Callable[[engine_pb2.Command, Any], None]
WRITERS: Mapping[type, Writer] = {
    Load: _load_to,
    Unload: _unload_to,
    SwapOut: _swap_out_to,
    SwapIn: _swap_in_to,
    Turn: _turn_to,
    Close: _close_to,
    Amend: _amend_to,
    Cancel: _cancel_to,
    Fetch: _fetch_to,
}


def command_from(message: engine_pb2.Command) -> Command:
    """The command of a message."""
    kind = message.WhichOneof("body")
    read = READERS.get(str(kind))
    body = None if kind is None or read is None else read(getattr(message, kind))
    return Command(CommandId(message.id), body, tuple(CommandId(id) for id in message.after), message.reason)
