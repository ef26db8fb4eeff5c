"""The event log of one life of the scheduler, for `aegaeon replay`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import count
from pathlib import Path

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.config import SchedulerConfig
from aegaeon_scheduler.core.log import LogWriter
from aegaeon_scheduler.errors import ConfigError
from aegaeon_scheduler.service.driver import Observer


@contextmanager
def recording(path: Path, config: SchedulerConfig) -> Iterator[Observer]:
    """An observer that writes the log, line by line. The log of an earlier life at the same path is kept as PATH.1,
    PATH.2 and so on: a log replays from its beginning alone. Raises ConfigError when the file cannot be written."""
    try:
        _keep_earlier(path)
        lines = path.open("x", encoding="utf-8", buffering=1)
    except OSError as error:
        raise ConfigError(f"record: {path} cannot be written: {error.strerror}") from error
    with lines:
        writer = LogWriter(lines, config, version("aegaeon"))

        def record(now: float, event: events.Event, decided: list[commands.Command], _seconds: float) -> None:
            writer.write(now, event, decided)

        yield record


def _keep_earlier(path: Path) -> None:
    if path.exists():
        kept = (path.with_name(f"{path.name}.{n}") for n in count(1))
        path.rename(next(name for name in kept if not name.exists()))
