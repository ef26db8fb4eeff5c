"""The four lanes: one thread each, which takes the head of its queue when it may start and executes it.

A command's error becomes CommandFailed, and what waits for it is skipped. A sticky error of the device, after
which every other command would fail, and any other exception end the sidecar: a dead lane would block the engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from aegaeon_native import NativeError
from aegaeon_proto.engine.ids import CommandId, InstanceId
from aegaeon_proto.engine.reports import CommandDone, CommandFailed, FailureKind, Memory, Report
from aegaeon_sidecar.domain.errors import (
    CancelledError,
    CommandError,
    InvalidError,
    NoMemoryError,
    StaleError,
    UnknownError,
)
from aegaeon_sidecar.domain.program import Lane, Program
from aegaeon_sidecar.domain.sticky import end_if_sticky
from aegaeon_sidecar.engine.outcome import Outcome
from aegaeon_sidecar.engine.state import Queued, State, Work

log = logging.getLogger(__name__)

Handler = Callable[[Queued], Outcome]
Post = Callable[[Queued, Report], None]

_KINDS: tuple[tuple[type[CommandError], FailureKind], ...] = (
    (NoMemoryError, FailureKind.NO_MEMORY),
    (UnknownError, FailureKind.UNKNOWN),
    (StaleError, FailureKind.STALE),
    (CancelledError, FailureKind.CANCELLED),
    (InvalidError, FailureKind.INVALID),
)


def failed(instance: InstanceId, command: CommandId, error: Exception, memory: Memory) -> CommandFailed:
    """The report on a command that failed with this error."""
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), FailureKind.ENGINE)
    return CommandFailed(instance, command, kind, str(error), memory)


def _done(instance: InstanceId, command: Queued, seconds: float, memory: Memory, outcome: Outcome) -> CommandDone:
    handle = outcome.handle
    kv_tokens = 0 if handle is None else handle.kv_tokens
    return CommandDone(instance, command.id, seconds, memory, outcome.nbytes, kv_tokens, handle)


class Spare(Protocol):
    """Work in small pieces for a lane that has no command to start."""

    @property
    def pending(self) -> bool:
        """True while any is left."""
        ...

    def begin(self) -> bool:
        """Begin a piece (lock held); False when there is none."""
        ...

    def finish(self) -> None:
        """Wait for the piece, without the lock."""
        ...


class Lanes:
    """Starts and stops the threads. Each begins with `enter`; `crashed` is called, from the thread, with the error
    that ends a lane: that of a defect, or of a lost device. `spare`: what a lane does while nothing is copied in."""

    def __init__(
        self,
        state: State,
        handler: Handler,
        post: Post,
        crashed: Callable[[BaseException], None],
        enter: Callable[[], None],
        spare: Mapping[Lane, Spare] | None = None,
    ) -> None:
        self._enter = enter
        self._handler = handler
        self._spare = spare or {}
        state.monitor.spare.update({lane: partial(self._may_begin, each) for lane, each in self._spare.items()})
        self._state = state
        self._post = post
        self._crashed = crashed
        self._dead = False  # one of them; the others begin nothing on what may be a lost device
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=lane.value, daemon=True) for lane in Lane
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

    def _run(self, lane: Lane) -> None:
        try:
            self._enter()
            while (work := self._take(lane)) is not None:
                work()
        except BaseException as error:
            log.exception("lane %s is dead; the sidecar ends", lane.value)
            self._dead = True
            self._crashed(error)
            raise

    def _take(self, lane: Lane) -> Callable[[], None] | None:
        """Wait for the lane's next work; None when the engine stops."""
        with self._state.monitor.changed:
            while not (self._state.monitor.stopping or self._dead):
                command = self._state.program.head(lane)
                if command is not None:
                    command.running = True
                    self._state.running += 1
                    return partial(self._carry_out, self._state.program, command)
                spare = self._spare.get(lane)
                if spare is not None and self._may_begin(spare) and spare.begin():
                    return spare.finish
                self._state.monitor.queued[lane].wait()
        return None

    def _may_begin(self, spare: Spare) -> bool:
        return spare.pending and not self._copies_in()

    def _copies_in(self) -> bool:
        """True while weights or KV are copied to the device: spare work takes no memory bandwidth from a switch."""
        program = self._state.program
        first = [next(program.of(lane), None) for lane in (Lane.WEIGHTS, Lane.KV_IN)]
        return any(item is not None and (item.running or program.head(item.lane) is item) for item in first)

    def _carry_out(self, program: Program[Work], command: Queued) -> None:
        start = time.monotonic()
        try:
            outcome = self._handler(command)
        except (CommandError, NativeError) as error:
            end_if_sticky(error)
            self._end(program, command, error)
            return
        seconds = time.monotonic() - start
        if not outcome.silent:
            with self._state.monitor.changed:
                self._post(command, _done(program.instance, command, seconds, self._state.memory(), outcome))
        self._end(program, command, None)

    def _end(self, program: Program[Work], command: Queued, error: Exception | None) -> None:
        with self._state.monitor.changed:
            self._state.running -= 1
            if error is None:
                program.finish(command.id)
                skips = []
            else:
                skips = program.fail(command.id)
                self._post(command, failed(program.instance, command.id, error, self._state.memory()))
            for skip in skips:
                self._post(command, skip)
            self._state.monitor.notify_lanes(program)
