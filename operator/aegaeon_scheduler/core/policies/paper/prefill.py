"""Algorithm 1: grouped first-come-first-served prefill. Requests of one model share a switch; a group never exceeds
MAX_GPSIZE requests over its whole life, so that later ones of other models wait for a bounded time."""

from __future__ import annotations

from collections import deque

from aegaeon_scheduler.core.domain import SeqId
from aegaeon_scheduler.core.state import Instance, Model, Sequence


class Group:
    """Prompts of one model that an instance runs one after the other."""

    __slots__ = ("cost_s", "inst", "joined", "members", "model", "switch_s")

    def __init__(self, model: Model, inst: Instance, switch_s: float) -> None:
        self.model = model
        self.inst = inst
        self.switch_s = switch_s
        self.joined = 0
        self.members: dict[SeqId, Sequence] = {}
        self.cost_s: dict[SeqId, float] = {}


class PrefillQueue:
    """The groups of one instance; `load_s` are the seconds to finish them, switches included."""

    __slots__ = ("groups", "load_s")

    def __init__(self) -> None:
        self.groups: deque[Group] = deque()
        self.load_s = 0.0

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
