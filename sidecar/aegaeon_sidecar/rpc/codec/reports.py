"""Encodes a report as a message for the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aegaeon_proto.redaction import encodable
from aegaeon_proto.v1 import engine_pb2
from aegaeon_sidecar.domain import reports
from aegaeon_sidecar.domain.catalog import ModelState
from aegaeon_sidecar.rpc.codec.nouns import (
    FAILURES,
    FINISHES,
    PLACES,
    ROLES,
    handle_to,
    seq_to,
    spec_to,
    state_to,
)


def _shapes(shapes: Iterable[reports.ShapeMemory]) -> list[engine_pb2.ShapeMemory]:
    return [
        engine_pb2.ShapeMemory(kv_shape=m.kv_shape, free_blocks=m.free_blocks, used_blocks=m.used_blocks)
        for m in shapes
    ]


def _memory(memory: reports.Memory) -> engine_pb2.Memory:
    reuse, outside = memory.reuse, memory.outside
    return engine_pb2.Memory(
        slabs_free=memory.slabs_free,
        host_slabs_free=memory.host_slabs_free,
        shapes=_shapes(memory.shapes),
        host_shapes=_shapes(memory.host_shapes),
        reuse=engine_pb2.PrefixReuse(
            prompt_tokens=reuse.prompt_tokens, device_tokens=reuse.device_tokens, host_tokens=reuse.host_tokens
        ),
        slabs_kept=memory.slabs_kept,
        outside=engine_pb2.OutsideSlabs(
            reserved_bytes=outside.reserved_bytes, used_bytes=outside.used_bytes, peak_bytes=outside.peak_bytes
        ),
    )


def _held(held: reports.HeldSequence) -> engine_pb2.HeldSequence:
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


def _hello(hello: reports.Hello) -> engine_pb2.Report:
    message = engine_pb2.Hello(
        instance=hello.instance,
        incarnation=hello.incarnation,
        node=hello.node,
        role=ROLES[hello.role],
        device=hello.device,
        slab_bytes=hello.slab_bytes,
        slabs=hello.slabs,
        host_slabs=hello.host_slabs,
        memory=_memory(hello.memory),
        resident=hello.resident,
        models=[state_to(state) for state in hello.models],
        held=[_held(held) for held in hello.held],
        max_batch=hello.max_batch,
        twins=hello.twins,
        catalog=[spec_to(spec) for spec in hello.catalog],
        started=hello.started,
    )
    return engine_pb2.Report(hello=message)


def _done(done: reports.Done) -> engine_pb2.Report:
    message = engine_pb2.Done(
        id=done.id,
        seconds=done.seconds,
        memory=_memory(done.memory),
        handle=handle_to(done.handle),
        bytes=done.bytes,
    )
    return engine_pb2.Report(done=message)


def _progress(progress: reports.SeqProgress) -> engine_pb2.SeqProgress:
    return engine_pb2.SeqProgress(
        seq=seq_to(progress.seq),
        epoch=progress.epoch,
        output_tokens=progress.output_tokens,
        kv_tokens=progress.kv_tokens,
        starved=progress.starved,
        finish=FINISHES[progress.finish],
        reason=encodable(progress.reason) if progress.reason else "",
        failure=FAILURES[progress.failure],
    )


def _step_done(done: reports.StepDone) -> engine_pb2.Report:
    message = engine_pb2.StepDone(
        turn=done.turn,
        progress=[_progress(progress) for progress in done.progress],
        steps=done.steps,
        decode_s=done.decode_s,
        prefill_tokens=done.prefill_tokens,
        prefill_s=done.prefill_s,
        wait_s=done.wait_s,
        first_s=done.first_s,
        warm=done.warm,
        batch=done.batch,
        context_tokens=done.context_tokens,
        memory=_memory(done.memory),
        end=done.end,
    )
    return engine_pb2.Report(step_done=message)


def _failed(failed: reports.Failed) -> engine_pb2.Report:
    kind, memory = FAILURES[failed.kind], _memory(failed.memory)
    reason = encodable(failed.reason)
    return engine_pb2.Report(failed=engine_pb2.Failed(id=failed.id, kind=kind, reason=reason, memory=memory))


def _skipped(skipped: reports.Skipped) -> engine_pb2.Report:
    return engine_pb2.Report(skipped=engine_pb2.Skipped(id=skipped.id, because=skipped.because))


def _heartbeat(heartbeat: reports.Heartbeat) -> engine_pb2.Report:
    return engine_pb2.Report(heartbeat=engine_pb2.Heartbeat(memory=_memory(heartbeat.memory)))


def _model(state: ModelState) -> engine_pb2.Report:
    return engine_pb2.Report(model=state_to(state))


def _host_cache(cache: reports.HostCache) -> engine_pb2.Report:
    return engine_pb2.Report(host_cache=engine_pb2.HostCache(models=cache.models))


def _draining(_: reports.Draining) -> engine_pb2.Report:
    return engine_pb2.Report(draining=engine_pb2.Draining())


WRITERS: Mapping[type[reports.Report], Callable[[Any], engine_pb2.Report]] = {
    reports.Hello: _hello,
    reports.Done: _done,
    reports.StepDone: _step_done,
    reports.Failed: _failed,
    reports.Skipped: _skipped,
    reports.Heartbeat: _heartbeat,
    ModelState: _model,
    reports.HostCache: _host_cache,
    reports.Draining: _draining,
}


def report_to(report: reports.Report) -> engine_pb2.Report:
    """The message of a report."""
    return WRITERS[type(report)](report)
