"""Reports, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aegaeon_proto.codec.catalog import state_to
from aegaeon_proto.codec.hello import hello_to
from aegaeon_proto.codec.memory import memory_from, memory_to
from aegaeon_proto.codec.nouns import FAILURE_OF, FAILURES, FINISH_OF, FINISHES, handle_to, seq_from, seq_to
from aegaeon_proto.engine.catalog import ModelState
from aegaeon_proto.engine.ids import CommandId, InstanceId, ModelName
from aegaeon_proto.engine.reports import (
    CommandDone,
    CommandFailed,
    CommandSkipped,
    FailureKind,
    Hello,
    HostReported,
    InstanceDraining,
    Memory,
    MemoryReported,
    Progress,
    Report,
    TurnProgress,
    Update,
)
from aegaeon_proto.redaction import encodable
from aegaeon_proto.v1 import engine_pb2


def _done_to(done: CommandDone) -> engine_pb2.Report:
    message = engine_pb2.Done(
        id=done.id,
        seconds=done.seconds,
        memory=memory_to(done.memory),
        handle=handle_to(done.handle),
        bytes=done.bytes_moved,
    )
    return engine_pb2.Report(done=message)


def _progress_from(message: engine_pb2.SeqProgress) -> Progress:
    return Progress(
        seq=seq_from(message.seq),
        epoch=message.epoch,
        output_tokens=message.output_tokens,
        kv_tokens=message.kv_tokens,
        starved=message.starved,
        finish=FINISH_OF.get(message.finish),
        failure=FAILURE_OF.get(message.failure),
        reason=message.reason,
    )


def _progress_to(progress: Progress) -> engine_pb2.SeqProgress:
    return engine_pb2.SeqProgress(
        seq=seq_to(progress.seq),
        epoch=progress.epoch,
        output_tokens=progress.output_tokens,
        kv_tokens=progress.kv_tokens,
        starved=progress.starved,
        finish=FINISHES[progress.finish],
        failure=FAILURES[progress.failure],
        reason=encodable(progress.reason) if progress.reason else "",
    )


def _turn_to(turn: TurnProgress) -> engine_pb2.Report:
    message = engine_pb2.StepDone(
        turn=turn.turn,
        progress=[_progress_to(progress) for progress in turn.progress],
        steps=turn.steps,
        decode_s=turn.decode_s,
        prefill_tokens=turn.prefill_tokens,
        prefill_s=turn.prefill_s,
        wait_s=turn.wait_s,
        batch=turn.batch,
        context_tokens=turn.context_tokens,
        memory=memory_to(turn.memory),
        end=turn.end,
        first_s=turn.first_s,
        warm=turn.warm,
    )
    return engine_pb2.Report(step_done=message)


def _failed_to(failed: CommandFailed) -> engine_pb2.Report:
    message = engine_pb2.Failed(
        id=failed.id,
        kind=FAILURES[failed.kind],
        reason=encodable(failed.reason),
        memory=None if failed.memory is None else memory_to(failed.memory),
    )
    return engine_pb2.Report(failed=message)


WRITERS: Mapping[type[Report], Callable[[Any], engine_pb2.Report]] = {
    Hello: hello_to,
    CommandDone: _done_to,
    TurnProgress: _turn_to,
    CommandFailed: _failed_to,
    CommandSkipped: lambda report: engine_pb2.Report(skipped=engine_pb2.Skipped(id=report.id, because=report.because)),
    MemoryReported: lambda report: engine_pb2.Report(heartbeat=engine_pb2.Heartbeat(memory=memory_to(report.memory))),
    ModelState: lambda report: engine_pb2.Report(model=state_to(report)),
    HostReported: lambda report: engine_pb2.Report(host_cache=engine_pb2.HostCache(models=report.cached)),
    InstanceDraining: lambda _: engine_pb2.Report(draining=engine_pb2.Draining()),
}


def report_to(report: Report) -> engine_pb2.Report:
    """The message of a report."""
    return WRITERS[type(report)](report)


class ReportDecoder:
    """Reports of one attachment, but Hello and ModelState. Ids on the wire are `base` higher.

    It remembers the newest memory: a report without it changed none.
    """

    def __init__(self, instance: InstanceId, node: str, memory: Memory, base: int) -> None:
        self._instance = instance
        self._memory = memory
        self._base = base
        self._readers: Mapping[str | None, Callable[[Any], Update]] = {
            "done": self._done,
            "step_done": self._turn,
            "failed": self._failed,
            "skipped": lambda message: CommandSkipped(instance, self._id(message.id), self._id(message.because)),
            "heartbeat": lambda message: MemoryReported(instance, self._newest(message)),
            "host_cache": lambda message: HostReported(node, tuple(map(ModelName, message.models))),
            "draining": lambda _: InstanceDraining(instance),
        }

    def report(self, message: engine_pb2.Report) -> Update | None:
        """Decodes a message's report; None for a body that this version does not know."""
        kind = message.WhichOneof("body")
        read = self._readers.get(kind)
        return read(getattr(message, kind)) if read and kind else None

    def _id(self, on_wire: int) -> CommandId:
        return CommandId(on_wire - self._base)

    def _newest(
        self, report: engine_pb2.Done | engine_pb2.StepDone | engine_pb2.Failed | engine_pb2.Heartbeat
    ) -> Memory:
        if report.HasField("memory"):
            self._memory = memory_from(report.memory)
        return self._memory

    def _done(self, done: engine_pb2.Done) -> CommandDone:
        return CommandDone(
            instance=self._instance,
            id=self._id(done.id),
            seconds=done.seconds,
            memory=self._newest(done),
            bytes_moved=done.bytes,
            kv_tokens=done.handle.kv_tokens,
        )

    def _turn(self, done: engine_pb2.StepDone) -> TurnProgress:
        return TurnProgress(
            instance=self._instance,
            turn=self._id(done.turn),
            progress=tuple(_progress_from(p) for p in done.progress),
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

    def _failed(self, failed: engine_pb2.Failed) -> CommandFailed:
        return CommandFailed(
            instance=self._instance,
            id=self._id(failed.id),
            kind=FAILURE_OF.get(failed.kind) or FailureKind.ENGINE,
            reason=failed.reason,
            memory=self._newest(failed) if failed.HasField("memory") else None,
        )


def command_named(report: engine_pb2.Report) -> int | None:
    """The id of the command that a report is about, if it is about one."""
    kind = report.WhichOneof("body")
    if kind == "step_done":
        return report.step_done.turn
    return getattr(report, kind).id if kind in {"done", "failed", "skipped"} else None
