"""Algorithm 1: grouped first-come-first-served prefill. Requests of one model share a switch; a group never exceeds
MAX_GPSIZE requests over its whole life, so that later ones of other models wait for a bounded time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from aegaeon_scheduler.core.batch import Batch
from aegaeon_scheduler.core.domain import SeqId
from aegaeon_scheduler.core.state import Instance, Model, Sequence


@dataclass(slots=True, eq=False, repr=False)
class Group(Batch):
    """Prompts of one model that an instance runs one after the other."""

    model: Model
    inst: Instance
    queue: PrefillQueue
    switch_s: float
    joined: int = 0
    members: dict[SeqId, Sequence] = field(default_factory=dict)
    cost_s: dict[SeqId, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class PrefillQueue:
    """The groups of one instance; `load_s` are the seconds to finish them, switches included."""

    groups: deque[Group] = field(default_factory=deque)
    load_s: float = 0.0

    def add_group(self, group: Group) -> None:
        """Append an empty group."""
        self.groups.append(group)
        self.load_s += group.switch_s

    def join(self, group: Group, seq: Sequence, cost_s: float) -> None:
        """One more prompt in a group of this queue."""
        group.joined += 1
        group.members[seq.id] = seq
        group.cost_s[seq.id] = cost_s
        self.load_s += cost_s

    def remove(self, group: Group, seq: Sequence) -> bool:
        """Its prefill was issued or it left; True when that emptied and dropped the group."""
        if group.members.pop(seq.id, None) is None:
            return False
        self.load_s -= group.cost_s.pop(seq.id)
        if group.members:
            return False
        self.groups.remove(group)
        self.load_s = self.load_s - group.switch_s if self.groups else 0.0
        return True

    def put_back(self, group: Group, seq: Sequence, cost_s: float) -> None:
        """A prompt whose turn failed comes first again."""
        group.members[seq.id] = seq
        group.cost_s[seq.id] = cost_s
        self.load_s += cost_s
        self.groups.appendleft(group)

    def head(self) -> Sequence | None:
        """The prompt to run next."""
        return next(iter(self.groups[0].members.values())) if self.groups else None
