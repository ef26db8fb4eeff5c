"""Up: what a sidecar reports becomes an event of the core."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from aegaeon_proto.v1 import engine_pb2, model_pb2
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.domain import CommandId, FailureKind, InstanceId, Memory, ModelName, Phase
from aegaeon_scheduler.errors import ProtocolError
from aegaeon_scheduler.service.codec.nouns import (
    FAILURES,
    FINISHES,
    PHASES,
    ROLES,
    footprint_from,
    held_from,
    memory_from,
    named,
    seq_from,
)


def instance_up(hello: engine_pb2.Hello, others: Container[str] = ()) -> events.InstanceUp:
    """Raises ProtocolError when the instance does not say who or what it is. `others`: models of which it has not what
    the catalog means, so that their sequences are of no use."""
    if not hello.instance or not hello.incarnation:
        raise ProtocolError("Hello: instance and incarnation must be set")
    return events.InstanceUp(
        instance=InstanceId(hello.instance),
        incarnation=hello.incarnation,
        node=hello.node,
        role=named(ROLES, hello.role, f"Hello of {hello.instance}: role"),
        device=hello.device,
        slab_bytes=hello.slab_bytes,
        slabs=hello.slabs,
        host_slabs=hello.host_slabs,
        max_batch=hello.max_batch,
        memory=memory_from(hello.memory),
        resident=tuple(ModelName(name) for name in hello.resident),
        held=tuple(held_from(held) for held in hello.held if held.model not in others),
        twins=tuple((ModelName(name), ModelName(stands)) for name, stands in sorted(hello.twins.items())),
    )


def model_reported(instance: InstanceId, state: model_pb2.ModelState) -> events.ModelReported:
    """How far a model is on an instance. Raises ProtocolError without a phase."""
    phase = named(PHASES, state.phase, f"ModelState of {state.model} from {instance}: phase")
    return events.ModelReported(
        instance=instance,
        model=ModelName(state.model),
        phase=Phase.ABSENT if state.absent else phase,
        footprint=footprint_from(state.footprint) if state.HasField("footprint") else None,
        reason=state.reason,
        without=tuple((one.identity, one.reason) for one in state.adapters if PHASES.get(one.phase) is Phase.FAILED),
        cold=state.cold,
        remaining_s=state.remaining_s,
    )


def _progress(message: engine_pb2.SeqProgress) -> events.Progress:
    return events.Progress(
        seq=seq_from(message.seq),
        epoch=message.epoch,
        output_tokens=message.output_tokens,
        kv_tokens=message.kv_tokens,
        starved=message.starved,
        finish=FINISHES.get(message.finish),
        failure=FAILURES.get(message.failure),
        reason=message.reason,
    )


class ReportDecoder:
    """Reports of one attachment as events. Remembers the newest memory: a report without it changed none."""

    def __init__(self, instance: InstanceId, node: str, memory: Memory, base: int) -> None:
        self._instance = instance
        self._node = node
        self._memory = memory
        self._base = base
        self._decoders: Mapping[str | None, Callable[[Any], events.Event]] = {
            "hello": self._hello,
            "done": self._done,
            "step_done": self._step_done,
            "failed": self._failed,
            "skipped": self._skipped,
            "heartbeat": self._heartbeat,
            "model": self._model,
            "host_cache": self._host_cache,
            "draining": lambda _: events.InstanceDraining(self._instance),
        }

    def _id(self, on_wire: int) -> CommandId:
        return CommandId(on_wire - self._base)

    def event(self, report: engine_pb2.Report) -> events.Event | None:
        """The event of a report; None for a body that this version does not know. Raises ProtocolError."""
        kind = report.WhichOneof("body")
        decode = self._decoders.get(kind)
        return decode(getattr(report, kind)) if decode and kind else None

    def _heartbeat(self, heartbeat: engine_pb2.Heartbeat) -> events.MemoryReported:
        return events.MemoryReported(self._instance, self._newest(heartbeat))

    def _host_cache(self, cache: engine_pb2.HostCache) -> events.HostReported:
        return events.HostReported(self._node, tuple(ModelName(name) for name in cache.models))

    def _skipped(self, skipped: engine_pb2.Skipped) -> events.CommandSkipped:
        return events.CommandSkipped(self._instance, self._id(skipped.id), self._id(skipped.because))

    def _model(self, state: model_pb2.ModelState) -> events.ModelReported:
        return model_reported(self._instance, state)

    def _hello(self, _hello: engine_pb2.Hello) -> events.Event:
        raise ProtocolError(f"{self._instance}: Hello twice on one stream; open a new stream instead")

    def _newest(
        self, report: engine_pb2.Done | engine_pb2.StepDone | engine_pb2.Failed | engine_pb2.Heartbeat
    ) -> Memory:
        if report.HasField("memory"):
            self._memory = memory_from(report.memory)
        return self._memory

    def _done(self, done: engine_pb2.Done) -> events.CommandDone:
        return events.CommandDone(
            instance=self._instance,
            id=self._id(done.id),
            seconds=done.seconds,
            memory=self._newest(done),
            bytes_moved=done.bytes,
            kv_tokens=done.handle.kv_tokens,
        )

    def _step_done(self, done: engine_pb2.StepDone) -> events.TurnProgress:
        return events.TurnProgress(
            instance=self._instance,
            turn=self._id(done.turn),
            progress=tuple(_progress(p) for p in done.progress),
            steps=done.steps,
            decode_s=done.decode_s,
            prefill_tokens=done.prefill_tokens,
            prefill_s=done.prefill_s,
            wait_s=done.wait_s,
            batch=done.batch,
            context_tokens=done.context_tokens,
            memory=self._newest(done),
            end=done.end,
            first_s=done.first_s,
            warm=done.warm,
        )

    def _failed(self, failed: engine_pb2.Failed) -> events.CommandFailed:
        return events.CommandFailed(
            instance=self._instance,
            id=self._id(failed.id),
            kind=FAILURES.get(failed.kind, FailureKind.ENGINE),
            reason=failed.reason,
            memory=self._newest(failed) if failed.HasField("memory") else None,
        )


def command_named(report: engine_pb2.Report) -> int | None:
    """The id of the command that a report is about, if it is about one."""
    kind = report.WhichOneof("body")
    if kind == "step_done":
        return report.step_done.turn
    if kind == "done":
        return report.done.id
    if kind == "failed":
        return report.failed.id
    if kind == "skipped":
        return report.skipped.id
    return None
