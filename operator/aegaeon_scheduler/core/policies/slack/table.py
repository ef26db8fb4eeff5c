"""Where groups are: those of every model and instance, and those that wait. Both ends of each link change here."""

from __future__ import annotations

from collections.abc import Collection, Container
from math import inf

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import InstanceId, ModelName, Role, Stage, Tier
from aegaeon_scheduler.core.policies.slack.engines import View
from aegaeon_scheduler.core.policies.slack.group import Group, Load
from aegaeon_scheduler.core.policies.slack.order import TIER_SHARE, Kind, Member, Objectives, Standing
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model, Sequence, Weights


class Table:
    """`groups` are all of them, by number, `waiting` those without an instance; `pressed`: at the last
    pass one of these had little slack.

    A model's are kept by the row, not by the name: emptied groups of a withdrawn model live on to the next pass, and
    are no groups of one that has its name by then.
    """

    def __init__(self, pool: Pool, settings: SlackSettings) -> None:
        self._pool = pool
        self._settings = settings
        self.groups: dict[int, Group] = {}
        self.waiting: dict[int, Group] = {}
        self.pressed = False
        self._objectives = Objectives(settings)
        self._reshaped = False  # a model may have another objective
        self.uneven = False  # instances differ in size
        self._at: dict[InstanceId, View] = {}
        self.standings: dict[Model, Standing] = {}  # of models that had groups, until they are withdrawn
        self._of: dict[Model, list[Group]] = {}
        self._several: dict[Model, list[Group]] = {}  # of these, those with more than one
        self._emptied: dict[int, Group] = {}  # some may have members again
        self._uncast: dict[int, Group] = {}  # they began to wait, or had nowhere to go; see recast
        self._cast_for = -1  # the fleet's version

    def at(self, inst: Instance) -> list[Group]:
        """Groups placed on an instance, emptied ones included until the next pass."""
        return self.row(inst).groups

    def row(self, inst: Instance) -> View:
        """Returns the last measured view of an instance."""
        view = self._at.get(inst.id)
        if view is None:
            size = inst.slabs * inst.slab_bytes
            view = self._at[inst.id] = View(inst, size, size * (1.0 - self._settings.headroom))
            self._sizes()
        return view

    def view(self, inst: Instance) -> View:
        """Returns an instance's view, measured anew if it is stale."""
        view = self.row(inst)
        if view.outdated():
            view.measure(self._pool.estimates)
        return view

    def views(self) -> list[View]:
        """Lists the views of all instances, in order of attachment."""
        return [self.view(inst) for inst in self._pool.instances.values()]

    def live(self, inst: Instance) -> set[ModelName]:
        """Models with sequences in a group of the instance: their weights are no idle ones."""
        return {group.model.name for group in self.at(inst) if group.members}

    def idle(self, inst: Instance) -> list[Weights]:
        """Weights on the instance that may be unloaded: no group of it has their model."""
        live = self.live(inst)
        return [w for name, w in inst.weights.items() if name not in live and w.ready and w.unload is None]

    def of(self, model: Model) -> Collection[Group]:
        """Groups of a model, placed or waiting."""
        return self._of.get(model, ())

    def several(self) -> list[Group]:
        """Lists waiting groups of models with more than one."""
        return [group for of in self._several.values() for group in of if group.inst is None]

    def split(self) -> Collection[Model]:
        """Models with more than one group."""
        return self._several.keys()

    @property
    def models(self) -> int:
        """How many have groups."""
        return len(self._of)

    def group(self, seq: Sequence) -> Group | None:
        """The group that it is a member of."""
        return seq.batch if isinstance(seq.batch, Group) else None

    def standing(self, model: Model) -> Standing:
        """The standing of a model that has groups, or is to have one."""
        standing = self.standings.get(model)
        if standing is None:
            standing = self.standings[model] = Standing()
            standing.tier_s = standing.behind = self.tier_s(model)
        return standing

    def drop_withdrawn(self) -> None:
        """Drops the standings of models that left the catalog."""
        kept = {m: s for m, s in self.standings.items() if not m.withdrawn or m in self._of}
        self.standings = kept

    def tier_s(self, model: Model) -> float:
        """Seconds that its tier makes."""
        return model.config.terms.tier.level * TIER_SHARE * model.config.slo.ttft_s

    def down(self, inst: Instance) -> None:
        """Drops an instance that is gone: its groups wait."""
        view = self._at.get(inst.id)
        for group in list(view.groups if view is not None else ()):
            self.remove(group)
        self._at.pop(inst.id, None)
        self._sizes()

    def _sizes(self) -> None:
        self.uneven = len({view.size for view in self._at.values()}) > 1

    def create(self, model: Model, kind: Kind) -> Group:
        """An empty group that waits."""
        group = Group(model, kind, self._pool.tick(), self.standing(model))
        group.scale = self._objectives.scale(model)
        self.groups[group.number] = self._emptied[group.number] = group
        self._wait(group)
        of = self._of.setdefault(model, [])
        of.append(group)
        if len(of) > 1:
            self._several[model] = of
        self._pool.ask_pass()
        return group

    def place(self, group: Group, inst: Instance) -> None:
        """Places a group on an instance."""
        group.inst, group.since, group.still = inst, inf, None
        self.waiting.pop(group.number, None)
        group.watcher = view = self.row(inst)
        view.groups.append(group)
        view.changed(group)
        group.changed()

    def remove(self, group: Group) -> None:
        """Takes a group from its instance: it waits."""
        if group.inst is not None:
            view = self._at[group.inst.id]
            view.groups.remove(group)
            view.changed(group)
            group.inst = group.still = group.watcher = None
            group.changed()
            self._wait(group)
            self._pool.ask_pass()

    def _wait(self, group: Group) -> None:
        self.waiting[group.number] = self._uncast[group.number] = group

    def join(self, group: Group, seq: Sequence) -> None:
        """A sequence becomes a member. Idempotent."""
        if seq.row is None:
            seq.row = Member(seq)
        before = seq.batch
        if before is not None and before is not group:
            self.leave(seq)
        if before is not group:
            group.members[seq.id] = seq
            group.standing.ranked |= seq.deferred or seq.priority != 0
            group.standing.tiered |= seq.terms.tier is not Tier.STANDARD
            seq.batch = group
            group.remade()
        group.still = None

    def leave(self, seq: Sequence) -> None:
        """A sequence is no longer a member; an emptied group goes at the next pass."""
        group = self.group(seq)
        if group is None:
            return
        group.members.pop(seq.id, None)
        group.dequeue(seq)
        group.still = seq.batch = None
        group.remade()
        if not group.members:
            self._emptied[group.number] = group
            self._pool.ask_pass()

    def recast(self) -> None:
        """Instances came or went: groups that wait and may go nowhere begin anew as what the pool has room for."""
        fleet = self._pool.fleet
        groups = self._uncast if self._cast_for == fleet.version else self.waiting
        self._cast_for, self._uncast = fleet.version, {}
        for group in list(groups.values()):
            if group.inst is not None or not fleet.of(group.model).roles.isdisjoint(group.kind.roles):
                continue
            self._uncast[group.number] = group
            running = [s for s in group.members.values() if s.stage is not Stage.QUEUED]
            if len(running) == len(group.members):
                group.kind = Kind.DECODES
                continue
            if running:
                self.move(running, group.model, Kind.DECODES)
            group.kind = self.prompt_kind(group.model)

    def split_by_adapter(self) -> None:
        """Groups that wait, and whose members' adapters no one instance serves, are split: one for each adapter."""
        if not any(inst.without for inst in self._pool.instances.values()):
            return  # no look at all groups that wait
        for group in [g for g in self.waiting.values() if g.model.without]:
            node = group.node()
            places = [inst for inst in self._pool.fleet.of(group.model).open if node in (None, inst.node)]
            if not places or any(group.may_go(inst) for inst in places):
                continue
            by_adapter: dict[str, list[Sequence]] = {}
            for seq in group.members.values():
                by_adapter.setdefault(seq.adapter, []).append(seq)
            for leaving in list(by_adapter.values())[1:]:
                self.move(leaving, group.model, group.kind)

    def prompt_kind(self, model: Model, seq: Sequence | None = None) -> Kind:
        """Where prompts of this model, or this one of them, go: to instances of their own where there are any."""
        places = self._pool.fleet.of(model)
        roles: Container[Role] = places.roles
        if seq is not None and model.without:
            roles = [inst.role for inst in places.open if not inst.lacks(seq)]
        return Kind.PROMPTS if Role.PREFILL in roles else Kind.WHOLE

    def move(self, leaving: list[Sequence], model: Model, kind: Kind) -> Group:
        """Make members of other groups a group of their own, which waits."""
        half = self.create(model, kind)
        for seq in leaving:
            before = self.group(seq)
            if before is not None and seq.id in before.prompts:
                half.enqueue(seq)  # before it leaves the other one: a clock ends when no prompt waits
            self.join(half, seq)
        return half

    def merge(self, group: Group, into: Group) -> None:
        """Every member joins another group of its model; the emptied one goes at the next pass."""
        for seq in list(group.members.values()):
            if seq.id in group.prompts:
                into.enqueue(seq)
            self.join(into, seq)

    def reap(self) -> None:
        """Emptied groups go; the weights stay where they are, idle."""
        emptied, self._emptied = self._emptied, {}
        for number in sorted(emptied):
            group = emptied[number]
            if group.members:
                continue
            self.remove(group)
            del self.groups[group.number], self.waiting[group.number]
            self._uncast.pop(group.number, None)
            of = self._of[group.model]
            of.remove(group)
            if len(of) < 2:
                self._several.pop(group.model, None)
            if not of:
                del self._of[group.model]

    def reshaped(self, model: Model) -> None:
        """Revises a model that may have another objective."""
        self._reshaped = True
        for group in self.of(model):
            group.still = None
            group.changed()

    def rescale(self) -> None:
        """At each pass: slack counts by the shortest TTFT of the models that have groups by now."""
        if not self._objectives.changed(self._of) and not self._reshaped:
            return
        self._reshaped = False
        for group in self.groups.values():
            group.rescale(self._objectives.scale(group.model))
        for view in self._at.values():
            view.reranked()


def disagreements(pool: Pool, table: Table, now: float) -> list[str]:
    """Lists the differences; nothing where all is well."""
    differences = []
    several = set(table.several())
    for group in table.groups.values():
        if not group.agrees(now):
            differences.append(f"group {group.number} of {group.model.name} keeps another size or deadline than it has")
        if (group.number in table.waiting) is not (group.inst is None):
            differences.append(
                f"group {group.number} of {group.model.name} is not where the list of those that wait says"
            )
        if (group in several) is not (group.inst is None and len(table.of(group.model)) > 1):
            differences.append(f"group {group.number} of {group.model.name} is not listed by what else its model has")
        strange = (seq.id for seq in group.members.values() if seq.batch is not group)
        differences.extend(f"{seq} would not tell its group of a change" for seq in strange)
    for inst in pool.instances.values():
        view = table.row(inst)
        if not view.outdated() and not _same(view, pool):
            differences.append(f"{inst.id}: its groups ask for something else than is kept")
    return differences


def _same(view: View, pool: Pool) -> bool:
    loads = [Load.of(group, pool.estimates, view.inst) for group in view.groups if group.members]
    kept = [(load.group, load.util, load.nbytes) for load in view.loads]
    models = {load.group.model.name for load in loads}
    total = sum(load.nbytes for load in loads)
    return kept == [(x.group, x.util, x.nbytes) for x in loads] and view.models == models and view.nbytes == total
