"""Where groups are: those of every model and instance, and those that wait. Both ends of each link change here."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import InstanceId, ModelName, Role, SeqId
from aegaeon_scheduler.core.policies.slack.group import Group, Kind, Load
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model, Sequence, Stage


class Table:
    """`groups` are all of them, by number, and `waiting` those without an instance.

    A model's are kept by the row, not by the name: emptied groups of a withdrawn model live on to the next pass, and
    are no groups of one that has its name by then.
    """

    def __init__(self, pool: Pool, settings: SlackSettings) -> None:
        self._pool = pool
        self._settings = settings
        self.groups: dict[int, Group] = {}
        self.waiting: dict[int, Group] = {}
        self._at: dict[InstanceId, list[Group]] = {}
        self._of: dict[Model, list[Group]] = {}
        self._joined: dict[SeqId, Group] = {}

    def at(self, inst: Instance) -> list[Group]:
        """Groups placed on an instance, emptied ones included until the next pass."""
        return self._at[inst.id]

    def live(self, inst: Instance) -> set[ModelName]:
        """Models with sequences in a group of the instance: their weights are no idle ones."""
        return {group.model.name for group in self._at[inst.id] if group.members}

    def of(self, model: Model) -> Collection[Group]:
        """Groups of a model, placed or waiting."""
        return self._of.get(model, ())

    def group(self, seq: Sequence) -> Group | None:
        """The group that it is a member of."""
        return self._joined.get(seq.id)

    def up(self, inst: Instance) -> None:
        """A fresh instance."""
        self._at[inst.id] = []
        self._pool.ask_pass()

    def down(self, inst: Instance) -> None:
        """It is gone: its groups wait."""
        for group in list(self._at.get(inst.id, ())):
            self.remove(group)
        self._at.pop(inst.id, None)
        for group in self.groups.values():
            if group.target is inst:
                group.target = None

    def create(self, model: Model, kind: Kind) -> Group:
        """An empty group that waits."""
        group = Group(model, kind, self._pool.tick())
        self.groups[group.number] = self.waiting[group.number] = group
        self._of.setdefault(model, []).append(group)
        self._pool.ask_pass()
        return group

    def place(self, group: Group, inst: Instance) -> None:
        """It is to run here."""
        group.inst, group.since, group.target, group.still = inst, inf, None, None
        self.waiting.pop(group.number, None)
        self.at(inst).append(group)

    def remove(self, group: Group) -> None:
        """It waits."""
        if group.inst is not None:
            self.at(group.inst).remove(group)
            group.inst = group.still = None
            self.waiting[group.number] = group
            self._pool.ask_pass()

    def join(self, group: Group, seq: Sequence) -> None:
        """A sequence becomes a member. Idempotent."""
        before = self._joined.get(seq.id)
        if before is not None and before is not group:
            self.leave(seq)
        group.members[seq.id] = seq
        group.still = None
        self._joined[seq.id] = group

    def leave(self, seq: Sequence) -> None:
        """A sequence is no longer a member; an emptied group goes at the next pass."""
        group = self._joined.pop(seq.id, None)
        if group is None:
            return
        group.members.pop(seq.id, None)
        group.prompts.pop(seq.id, None)
        group.still = None
        if not group.members:
            self._pool.ask_pass()

    def recast(self) -> None:
        """Instances came or went: groups that wait and may go nowhere begin anew as what the pool has room for."""
        for group in list(self.groups.values()):
            if group.inst is not None or any(group.may_go(i) for i in self._pool.instances.values()):
                continue
            running = [s for s in group.members.values() if s.stage is not Stage.QUEUED]
            if len(running) == len(group.members):
                group.kind = Kind.DECODES
                continue
            if running:
                self.move(running, group.model, Kind.DECODES)
            group.kind = self.prompt_kind(group.model)

    def prompt_kind(self, model: Model) -> Kind:
        """Where prompts of this model go: to instances of their own where there are any."""
        prefill = any(i.role is Role.PREFILL and i.has(model) for i in self._pool.instances.values())
        return Kind.PROMPTS if prefill else Kind.WHOLE

    def move(self, leaving: list[Sequence], model: Model, kind: Kind) -> Group:
        """Make members of other groups a group of their own, which waits."""
        half = self.create(model, kind)
        for seq in leaving:
            before = self._joined.get(seq.id)
            waits = before is not None and seq.id in before.prompts
            self.join(half, seq)
            if waits:
                half.prompts[seq.id] = seq
        return half

    def merge(self, group: Group, into: Group) -> None:
        """Every member joins another group of its model; the emptied one goes at the next pass."""
        prompts = set(group.prompts)
        for seq in list(group.members.values()):
            self.join(into, seq)
            if seq.id in prompts:
                into.prompts[seq.id] = seq

    def reap(self) -> None:
        """Emptied groups go; the weights stay where they are, idle."""
        for group in [g for g in self.groups.values() if not g.members]:
            self.remove(group)
            del self.groups[group.number], self.waiting[group.number]
            self._of[group.model].remove(group)
            if not self._of[group.model]:
                del self._of[group.model]

    def util(self, inst: Instance, now: float) -> float:
        """Share of the instance's time that its groups ask for."""
        settings, estimates = self._settings, self._pool.estimates
        return sum(Load.of(g, now, settings, estimates, inst).util for g in self.at(inst) if g.members)
