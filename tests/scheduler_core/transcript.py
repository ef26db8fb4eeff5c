"""What went into the core and what came out, as text that a person can read and review in a diff.

A line for each event with its time in seconds, below it the commands that it caused. Reports that cause nothing, times
to wake at, and memory (which the engines of the simulator report with everything) are left out. As in Raft's
"interaction" tests (etcd, CockroachDB): a change of behaviour shows as a change of a text file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from enum import Enum
from typing import Any

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev

_UNSAID = {
    "arrival", "batch", "bytes_moved", "context_tokens", "decode_s", "device", "footprint", "gateway", "incarnation",
    "max_tokens", "memory", "prefill_s", "seconds", "slab_bytes", "wait_s",
}  # fmt: skip


class Transcript:
    """An observer of a simulated world (aegaeon_simulator.pool.world.World). `text` is what it has seen so far."""

    def __init__(self, title: str) -> None:
        self._lines = [f"# {title}"]

    def observe(self, now: float, event: ev.Event, commands: Iterable[cmd.Command]) -> None:
        said = [command for command in commands if not isinstance(command, cmd.Wake)]
        if not said:
            return
        self._lines.append(f"{now:9.4f}  {_plain(event)}")
        self._lines += [f"           {_command(command)}" for command in said]

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _command(command: cmd.Command) -> str:
    if not isinstance(command, cmd.Send):
        return f"-> {_plain(command)}"
    after = f" after {', '.join(f'#{i}' for i in command.after)}" if command.after else ""
    return f"-> {command.instance} #{command.id} {_plain(command.body)}{after}  ({command.reason})"


def _plain(value: Any) -> str:
    """A dataclass as its name and the fields that differ from their defaults."""
    fields = [field for field in dataclasses.fields(value) if field.name not in _UNSAID]
    said = ((field.name, getattr(value, field.name)) for field in fields if _differs(field, value))
    return " ".join([type(value).__name__, *(f"{name}={_value(found)}" for name, found in said)])


def _differs(field: dataclasses.Field[Any], value: Any) -> bool:
    found = getattr(value, field.name)
    if found == 0 and field.default is None:
        return True
    return found not in ((), None, 0, "") and found != field.default


def _value(found: Any) -> str:
    if isinstance(found, tuple) and not hasattr(found, "_fields"):
        return f"[{', '.join(map(_value, found))}]"
    if isinstance(found, Enum):
        return str(found.name).lower()
    if dataclasses.is_dataclass(found):
        return f"{{{_plain(found)}}}"
    if isinstance(found, tuple):
        return "/".join(map(str, found))
    return f"{found:g}" if isinstance(found, float) else str(found)
