"""The four lanes: a real thread each, which takes the head of its lane when it may start and carries it out.

What a command fails with becomes Failed, and Skipped for all that waits for it. Anything else that a thread raises is a
defect: the sidecar says so and ends, rather than going on with a lane that is dead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from aegaeon_native import NativeError
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.domain.errors import (
    CancelledError,
    CommandError,
    InvalidError,
    NoMemoryError,
    StaleError,
    UnknownError,
)
from aegaeon_sidecar.domain.program import Lane, Program, Skip
from aegaeon_sidecar.engine.outcome import Outcome
from aegaeon_sidecar.engine.state import Command, State, Work

log = logging.getLogger(__name__)

Handler = Callable[[Command], Outcome]
Post = Callable[[Command, pb.Report], None]

_KINDS: tuple[tuple[type[CommandError], pb.FailureKind.ValueType], ...] = (
    (NoMemoryError, pb.FAILURE_KIND_NO_MEMORY),
    (UnknownError, pb.FAILURE_KIND_UNKNOWN),
    (StaleError, pb.FAILURE_KIND_STALE),
    (CancelledError, pb.FAILURE_KIND_CANCELLED),
    (InvalidError, pb.FAILURE_KIND_INVALID),
)


def failed(command: int, error: Exception, memory: pb.Memory) -> pb.Report:
    """The report on a command that failed with this error."""
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), pb.FAILURE_KIND_ENGINE)
    return pb.Report(failed=pb.Failed(id=command, kind=kind, reason=str(error), memory=memory))


def skipped(skip: Skip) -> pb.Report:
    return pb.Report(skipped=pb.Skipped(id=skip.id, because=skip.because))


class Lanes:
    """Starts and stops the threads. `crashed` is called, from the thread, when one dies of a defect."""

    def __init__(self, state: State, handler: Handler, post: Post, crashed: Callable[[], None]) -> None:
        self._state = state
        self._post = post
        self._crashed = crashed
        self._threads = [
            threading.Thread(target=self._run, args=(lane, handler), name=lane.value, daemon=True) for lane in Lane
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads after `state.monitor.stopping` was set; True when all have ended."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, lane: Lane, handler: Handler) -> None:
        try:
            while (taken := self._take(lane)) is not None:
                self._carry_out(*taken, handler)
        except BaseException:
            log.exception("lane %s is dead; the sidecar ends", lane.value)
            self._crashed()
            raise

    def _take(self, lane: Lane) -> tuple[Program[Work], Command] | None:
        with self._state.monitor.changed:
            while not self._state.monitor.stopping:
                command = self._state.program.head(lane)
                if command is not None:
                    command.running = True
                    self._state.running += 1
                    return self._state.program, command
                self._state.monitor.changed.wait()
        return None

    def _carry_out(self, program: Program[Work], command: Command, handler: Handler) -> None:
        start = time.monotonic()
        try:
            outcome = handler(command)
        except (CommandError, NativeError) as error:
            self._end(program, command, error)
            return
        seconds = time.monotonic() - start
        if not outcome.silent:
            done = pb.Done(id=command.id, seconds=seconds, bytes=outcome.nbytes, memory=self._state.memory())
            if outcome.handle is not None:
                done.handle.CopyFrom(outcome.handle)
            self._post(command, pb.Report(done=done))
        self._end(program, command, None)

    def _end(self, program: Program[Work], command: Command, error: Exception | None) -> None:
        with self._state.monitor.changed:
            self._state.running -= 1
            if error is None:
                program.finish(command.id)
                skips = []
            else:
                skips = program.fail(command.id)
                self._post(command, failed(command.id, error, self._state.memory()))
            for skip in skips:
                self._post(command, skipped(skip))
            self._state.monitor.changed.notify_all()
