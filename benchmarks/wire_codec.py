"""The far side of the scheduler's codec: its messages as commands of a modelled engine, the engine's events as reports.

Ids stay those of the wire. The handle of a copy names the engine and the command that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aegaeon_proto.v1 import engine_pb2, model_pb2
from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import CommandId, Finish, Footprint, InstanceId, ModelName, SeqId
from aegaeon_scheduler.service.codec.nouns import FAILURES, FINISHES, PHASES, memory_to, role_to, seq_to

_BLOCKS_OF_A_HANDLE = 64
_FINISH_CODES = {finish: code for code, finish in FINISHES.items()}
_FAILURE_CODES = {failure: code for code, failure in FAILURES.items()}
_PHASE_CODES = {phase: code for code, phase in PHASES.items()}


def _seq(message: model_pb2.SeqId) -> SeqId:
    return SeqId(message.request, message.choice)


def _adopt(body: engine_pb2.Adopt) -> cmd.Adopt:
    source, _, id = body.handle.segment.rpartition("/")
    return cmd.Adopt(_seq(body.seq), body.epoch, InstanceId(source), CommandId(int(id)), body.slabs)


def _turn(body: engine_pb2.Turn) -> cmd.Turn:
    prefill = tuple(cmd.PrefillPart(_seq(part.seq), part.tokens) for part in body.prefill)
    return cmd.Turn(ModelName(body.model), prefill, tuple(map(_seq, body.decode)), body.steps, body.slabs)


def _amend(body: engine_pb2.Amend) -> cmd.Amend:
    steps = body.steps if body.HasField("steps") else None
    return cmd.Amend(CommandId(body.turn), steps, tuple(map(_seq, body.join)), tuple(map(_seq, body.leave)), body.slabs)


_READERS: Mapping[str, Callable[[Any], cmd.Body]] = {
    "load": lambda b: cmd.Load(ModelName(b.model), b.slabs, b.past_host, ModelName(b.twin) or None, b.identity),
    "unload": lambda b: cmd.Unload(ModelName(b.model)),
    "swap_out": lambda b: cmd.SwapOut(_seq(b.seq), b.epoch),
    "swap_in": lambda b: cmd.SwapIn(_seq(b.seq), b.epoch, b.slabs),
    "adopt": _adopt,
    "turn": _turn,
    "open": lambda b: cmd.Open(_seq(b.seq), b.epoch, ModelName(b.model)),
    "close": lambda b: cmd.Close(_seq(b.seq), b.epoch),
    "amend": _amend,
    "cancel": lambda b: cmd.Cancel(CommandId(b.id)),
}


def command_from(instance: InstanceId, message: engine_pb2.Command) -> cmd.Send | None:
    """None for what a modelled engine has no use for: the catalog."""
    kind = message.WhichOneof("body")
    read = _READERS.get(kind) if kind else None
    if kind is None or read is None:
        return None
    after = tuple(CommandId(id) for id in message.after)
    return cmd.Send(instance, CommandId(message.id), read(getattr(message, kind)), after, message.reason)


def footprint_to(footprint: Footprint) -> model_pb2.Footprint:
    """What a model takes on an engine."""
    return model_pb2.Footprint(
        weight_bytes=footprint.weight_bytes,
        weight_slabs=footprint.weight_slabs,
        kv_shape=footprint.kv_shape,
        kv_block_bytes=footprint.kv_block_bytes,
        kv_block_tokens=footprint.kv_block_tokens,
        max_model_len=footprint.max_model_len,
    )


def hello_to(up: ev.InstanceUp, models: list[ev.ModelReported], started: float) -> engine_pb2.Report:
    """The first report of an engine that holds no sequence."""
    states = [
        model_pb2.ModelState(
            model=state.model,
            phase=_PHASE_CODES[state.phase],
            footprint=footprint_to(state.footprint) if state.footprint else None,
        )
        for state in models
    ]
    hello = engine_pb2.Hello(
        instance=up.instance,
        incarnation=up.incarnation,
        node=up.node,
        role=role_to(up.role),
        device=up.device,
        slab_bytes=up.slab_bytes,
        slabs=up.slabs,
        host_slabs=up.host_slabs,
        memory=memory_to(up.memory),
        models=states,
        max_batch=up.max_batch,
        started=started,
    )
    return engine_pb2.Report(hello=hello)


def _done(event: ev.CommandDone) -> engine_pb2.Report:
    done = engine_pb2.Done(id=event.id, seconds=event.seconds, memory=memory_to(event.memory), bytes=event.bytes_moved)
    if event.kv_tokens:
        done.handle.segment = f"{event.instance}/{event.id}"
        done.handle.kv_tokens = event.kv_tokens
        done.handle.blocks.extend(range(_BLOCKS_OF_A_HANDLE))
    return engine_pb2.Report(done=done)


def _progress(p: ev.Progress) -> engine_pb2.SeqProgress:
    message = engine_pb2.SeqProgress(
        seq=seq_to(p.seq), epoch=p.epoch, output_tokens=p.output_tokens, kv_tokens=p.kv_tokens, starved=p.starved
    )
    if p.finish is not None:
        message.finish = _FINISH_CODES[Finish(p.finish)]
    return message


def _step_done(event: ev.TurnProgress) -> engine_pb2.Report:
    return engine_pb2.Report(
        step_done=engine_pb2.StepDone(
            turn=event.turn,
            progress=[_progress(p) for p in event.progress],
            steps=event.steps,
            decode_s=event.decode_s,
            prefill_tokens=event.prefill_tokens,
            prefill_s=event.prefill_s,
            wait_s=event.wait_s,
            batch=event.batch,
            context_tokens=event.context_tokens,
            memory=memory_to(event.memory),
            end=event.end,
        )
    )


def _failed(event: ev.CommandFailed) -> engine_pb2.Report:
    memory = memory_to(event.memory) if event.memory is not None else None
    kind = _FAILURE_CODES[event.kind]
    return engine_pb2.Report(failed=engine_pb2.Failed(id=event.id, kind=kind, reason=event.reason, memory=memory))


_WRITERS: Mapping[type, Callable[[Any], engine_pb2.Report]] = {
    ev.CommandDone: _done,
    ev.TurnProgress: _step_done,
    ev.CommandFailed: _failed,
    ev.CommandSkipped: lambda e: engine_pb2.Report(skipped=engine_pb2.Skipped(id=e.id, because=e.because)),
    ev.MemoryReported: lambda e: engine_pb2.Report(heartbeat=engine_pb2.Heartbeat(memory=memory_to(e.memory))),
}


def report_to(event: ev.Event) -> engine_pb2.Report:
    """A report of a modelled engine, Hello aside."""
    return _WRITERS[type(event)](event)
