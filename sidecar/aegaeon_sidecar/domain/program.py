"""The scheduler's program for one sidecar: commands on four lanes, each waiting for the ids in its `after`.

Pure bookkeeping, without threads or clocks, so that the protocol's rules (order within a lane, skipping what depends
on a failure, no deadlock) can be tested on their own. The engine's lock guards it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any, Generic, TypeVar

from aegaeon_proto.engine.ids import CommandId, InstanceId
from aegaeon_proto.engine.reports import CommandSkipped

Body = TypeVar("Body")
_FAILURES_KEPT = 65536


class Lane(Enum):
    """Commands that run one after another; lanes run side by side."""

    WEIGHTS = "weights"
    KV_OUT = "kv-out"
    KV_IN = "kv-in"
    COMPUTE = "compute"


@dataclass(slots=True, eq=False)
class Item(Generic[Body]):
    """One command with a lane. `cancelled` is read by the lane that runs it; `issued_s` is a monotonic time.

    `owner` is the attachment that its id belongs to: another scheduler's ids begin at 1 again. `tag`, of its copies, is
    no other command's.
    """

    id: CommandId
    lane: Lane
    after: tuple[CommandId, ...]
    body: Body
    owner: int
    issued_s: float = 0.0
    running: bool = False
    cancelled: bool = False
    tag: int = field(default_factory=count(1).__next__)


AnyCommand = Item[Any]
"""A command whose body does not matter."""


class Program(Generic[Body]):
    """Commands that are queued or running, in the order of issue. Ids rise; `after` names smaller ones."""

    def __init__(self, instance: InstanceId) -> None:
        self.instance = instance
        self._pending: OrderedDict[CommandId, Item[Body]] = OrderedDict()
        self._failed: OrderedDict[CommandId, None] = OrderedDict()
        self.last_id = 0

    def issue(self, item: Item[Body]) -> CommandSkipped | None:
        """Queue a command; CommandSkipped when something it waits for has failed. Raises ValueError for a later id."""
        late = [i for i in item.after if i >= item.id]
        if late:
            raise ValueError(f"command {item.id} waits for {late}: `after` may name earlier ids alone")
        self.last_id = max(self.last_id, item.id)
        for cause in item.after:
            if cause in self._failed:
                self.mark_failed(item.id)
                return CommandSkipped(self.instance, item.id, cause)
        self._pending[item.id] = item
        return None

    def head(self, lane: Lane) -> Item[Body] | None:
        """The first command of a lane when it may start: not running, and nothing of its `after` is pending."""
        item = next(self.of(lane), None)
        if item is None or item.running or any(i in self._pending for i in item.after):
            return None
        return item

    def of(self, lane: Lane) -> Iterator[Item[Body]]:
        """The commands of a lane, running one first, in order of issue."""
        return (item for item in self._pending.values() if item.lane is lane)

    def get(self, command: CommandId) -> Item[Body] | None:
        """A queued or running command; None when it has ended or never had a lane."""
        return self._pending.get(command)

    def finish(self, command: CommandId) -> None:
        """Ends a command that succeeded: what waited for it may start."""
        self._pending.pop(command, None)

    def fail(self, command: CommandId) -> list[CommandSkipped]:
        """Ends a command that failed or was cancelled: everything that waits for it, directly or not, is dropped and
        returned.
        """
        self._pending.pop(command, None)
        self.mark_failed(command)
        skips: list[CommandSkipped] = []
        for item in list(self._pending.values()):
            cause = next((i for i in item.after if i in self._failed), None)
            if cause is not None:
                del self._pending[item.id]
                self.mark_failed(item.id)
                skips.append(CommandSkipped(self.instance, item.id, cause))
        return skips

    def mark_failed(self, command: CommandId) -> None:
        """Remember a failure (also of a command without a lane) for commands still to come."""
        self._failed[command] = None
        if len(self._failed) > _FAILURES_KEPT:
            self._failed.popitem(last=False)

    def drop_queued(self) -> list[Item[Body]]:
        """Forget what has not started; returns what runs."""
        self._pending = OrderedDict((i, item) for i, item in self._pending.items() if item.running)
        return list(self._pending.values())

    def waits_for(self, command: CommandId, other: CommandId) -> bool:
        """Returns whether `command` cannot start before `other` has ended, by `after` and by the order within lanes."""
        return other in self._closure(self._before(command))

    def ends_before(self, other: CommandId, lane: Lane, matches: Callable[[Body], bool]) -> bool:
        """Returns whether such a command of this lane is queued or running, and can end before `other` does."""
        return any(matches(item.body) and not self.waits_for(item.id, other) for item in self.of(lane))

    def _closure(self, start: Iterable[CommandId]) -> set[CommandId]:
        seen: set[CommandId] = set()
        todo = list(start)
        while todo:
            command = todo.pop()
            if command not in seen:
                seen.add(command)
                todo.extend(self._before(command))
        return seen

    def _before(self, command: CommandId) -> list[CommandId]:
        item = self._pending.get(command)
        if item is None:
            return []
        if item.running:
            return []
        earlier = [other.id for other in self.of(item.lane) if other.id < command]
        return [*(i for i in item.after if i in self._pending), *earlier[-1:]]


AnyProgram = Program[Any]
"""A program whose commands' bodies do not matter."""
