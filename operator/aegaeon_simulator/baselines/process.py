"""Processes in virtual time as generators: a worker reads top-down, and yields where time passes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Union

from aegaeon_simulator.clock import Clock

_DIGITS = 9  # of a second: what ends in the same tick ends at the same time, in the order of its start


class Signal:
    """An event that idle processes wait for."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Process] = []

    def add(self, process: Process) -> None:
        """Add a process that resumes when the signal is given."""
        self._waiting.append(process)

    def give(self, clock: Clock, start: StartProcess) -> None:
        """Resume all waiting processes at this time, after the current one."""
        waiting, self._waiting = self._waiting, []
        for process in waiting:
            clock.at(clock.now, lambda p=process: start(p))  # type: ignore[misc]  # mypy cannot infer a lambda with a default


Process = Generator[Union[float, Signal], None, None]


class StartProcess:
    """Runs processes on a clock: a yielded number is a pause in seconds, a signal a wait for it."""

    __slots__ = ("_clock", "steps")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.steps = 0

    def __call__(self, process: Process) -> None:
        """Run the process up to its next pause."""
        self.steps += 1
        pause = next(process, None)
        if isinstance(pause, Signal):
            pause.add(process)
        elif pause is not None:
            self._clock.at(round(self._clock.now + pause, _DIGITS), lambda: self(process))
