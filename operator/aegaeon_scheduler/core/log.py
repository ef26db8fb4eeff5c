"""The event log: JSON lines, a header (format, version, configuration), then one line per event with its commands.

It has lengths, names and keyed hashes, never prompts. A replay checks whether the same events still give the same
commands.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import PolicySettings, SchedulerConfig
from aegaeon_scheduler.core.errors import LogError
from aegaeon_scheduler.core.scheduler import Scheduler

FORMAT = 5  # 5: a turn names the steps of its reports, and may be longer by an event
_NAMED: dict[str, type] = {
    t.__name__: t
    for t in (
        *typing.get_args(ev.Event), *typing.get_args(cmd.Command), *typing.get_args(cmd.Body),
        *typing.get_args(PolicySettings),
    )
}  # fmt: skip


def encode(value: Any) -> Any:
    """A value of the core's types as JSON; events, commands, bodies and policy settings carry their name under "_"."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"_": name, **fields} if name in _NAMED else fields
    if isinstance(value, (tuple, list)):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {k: encode(v) for k, v in value.items()}
    return value


def decode(data: Any, kind: Any) -> Any:
    """The inverse: `kind` is a type annotation. Raises LogError for what does not fit."""
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    if data is None or kind is Any:
        return data
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(data, dict) and "_" in data and origin is not dict:
        return _build(_known(data["_"]), data)
    if origin is tuple:
        return tuple(decode(v, args[0]) for v in data)
    if origin is dict:
        return {decode(k, args[0]): decode(v, args[1]) for k, v in data.items()}
    if args:  # a union with None
        return decode(data, next(a for a in args if a is not type(None)))
    return _plain(data, kind)


def _plain(data: Any, kind: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return _build(typing.cast(type, kind), data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*data)
    return float(data) if kind is float else data


def _known(name: str) -> type:
    if name not in _NAMED:
        raise LogError(f"unknown record {name!r}; was the log written by a newer version?")
    return _NAMED[name]


def _build(kind: type, data: dict[str, Any]) -> Any:
    hints = _hints(kind)
    unknown = [k for k in data if k != "_" and k not in hints]
    if unknown:
        raise LogError(f"{kind.__name__} has no field {unknown[0]!r}")
    return kind(**{k: decode(v, hints[k]) for k, v in data.items() if k != "_"})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


class LogWriter:
    """Writes a log; the caller owns the file."""

    def __init__(self, out: TextIO, config: SchedulerConfig, version: str) -> None:
        self._out = out
        self._line({"log": FORMAT, "version": version, "config": encode(config)})

    def write(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        """One event and what came of it."""
        self._line({"t": now, "event": encode(event), "commands": encode(commands)})

    def _line(self, record: dict[str, Any]) -> None:
        self._out.write(json.dumps(record, separators=(",", ":")) + "\n")


@dataclass(frozen=True, slots=True)
class Header:
    """First line of a log."""

    version: str
    config: SchedulerConfig


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """`same` when every event gave the recorded commands; else `difference` tells the first one for people."""

    version: str
    events: int
    commands: int
    same: bool
    difference: str = ""


def read_header(path: Path) -> Header:
    """The first line. Raises LogError."""
    with path.open(encoding="utf-8") as lines:
        record = _parse(path, 1, lines.readline())
    written = record.get("log")
    if not isinstance(written, int) or "version" not in record:
        raise LogError(f"{path}: line 1: not an event log")
    if written != FORMAT:
        by = f"written by version {record['version']} in format {written}"
        raise LogError(f"{path}: {by}; this version replays format {FORMAT}: use that version for this log")
    return Header(record["version"], decode(record["config"], SchedulerConfig))


def read(path: Path) -> Iterator[tuple[float, ev.Event, list[cmd.Command]]]:
    """All events with their commands. Raises LogError."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if number == 1:
                continue
            record = _parse(path, number, line)
            try:
                commands = [decode(c, Any if not isinstance(c, dict) else _known(c["_"])) for c in record["commands"]]
                yield record["t"], decode(record["event"], _known(record["event"]["_"])), commands
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise LogError(f"{path}: line {number}: {error}") from error


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise LogError(f"{path}: line {number}: {error}; a crash may have cut the last line short") from error
    if not isinstance(record, dict):
        raise LogError(f"{path}: line {number}: not a record")
    return record


def replay(path: Path) -> ReplayResult:
    """Feed the log to a fresh scheduler and compare. Raises LogError when it cannot be read."""
    header = read_header(path)
    scheduler = Scheduler(header.config)
    events = count = 0
    for now, event, recorded in read(path):
        events += 1
        commands = scheduler.on(now, event)
        count += len(commands)
        if commands != recorded:
            where = f"event {events} at {now:.6f} s, {type(event).__name__}: {_first(recorded, commands)}"
            return ReplayResult(header.version, events, count, False, where)
    return ReplayResult(header.version, events, count, True)


def _first(recorded: list[cmd.Command], commands: list[cmd.Command]) -> str:
    for i in range(max(len(recorded), len(commands))):
        was = recorded[i] if i < len(recorded) else None
        now = commands[i] if i < len(commands) else None
        if was != now:
            return f"command {i + 1} was {was}, is {now}"
    return "equal"
