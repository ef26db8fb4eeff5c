"""The snapshot of the pool that one pass decides on: taken at its start, updated by the pass's own moves."""

from __future__ import annotations

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.group import Group, Load, Still, due
from aegaeon_scheduler.core.policies.slack.reach import Reach
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.policies.slack.view import View
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance

Waiting = tuple[float, int, Group, Still]
"""rank, number, the group, what of it does not change while it waits"""


class Picture:
    """What instances hold and can take (`views`), and the `moves` so far. `uneven`: instances differ in size."""

    def __init__(self, pool: Pool, settings: SlackSettings, table: Table, now: float) -> None:
        self.pool = pool
        self.settings = settings
        self.table = table
        self.now = now
        self.moves: list[Move] = []
        self.reach = Reach(pool, table)
        self.views = [self._view(inst) for inst in pool.instances.values()]
        self.uneven = len({view.size for view in self.views}) > 1
        self._measured: dict[tuple[int, str, int], Load] = {}

    def _view(self, inst: Instance) -> View:
        loads = [self._load(g, inst) for g in self.table.at(inst) if g.members]
        return View.of(inst, loads, self.settings.headroom, self.reach.lone(inst))

    def _load(self, group: Group, inst: Instance) -> Load:
        return Load.of(group, self.now, self.settings, self.pool.estimates, inst)

    def load_on(self, group: Group, inst: Instance) -> Load:
        """A group measured for an instance that it is not on; the same for all of one make."""
        key = (group.number, inst.device, inst.slab_bytes)
        load = self._measured.get(key)
        if load is None:
            load = self._measured[key] = self._load(group, inst)
        return load

    def waiting(self) -> list[Waiting]:
        """Groups that wait and are at rest, by rank."""
        waiting = []
        for group in self.table.waiting.values():
            if group.model.footprint is not None:
                rest = group.rest()
                if rest is not None:
                    waiting.append((group.order(self.now, self.settings).rank, group.number, group, rest))
        waiting.sort(key=lambda item: item[:2])
        return waiting

    def admit(self, view: View, load: Load, why: str) -> None:
        """A waiting group is placed there: one load at a time."""
        group = load.group
        self.table.place(group, view.inst)
        view.add(load)
        view.free = False
        self.reach.comes(group.model.name, view.inst)
        reason = f"{why}, slack {load.key - self.now:.3g} s"
        self.moves.append(Move(group.model, tuple(group.members.values()), view.inst, reason))

    def evict(self, view: View, load: Load, reason: str) -> None:
        """A group leaves its instance and waits; one with much KV in halves, which find room sooner."""
        group = load.group
        view.drop(load)
        self.table.remove(group)
        self.moves.append(Move(group.model, tuple(group.members.values()), None, reason))
        room = view.size - load.weights
        if load.nbytes - load.weights > self.settings.split_share * room and len(group.members) > 1:
            members = sorted(group.members.values(), key=due)
            self.table.move(members[len(members) // 2 :], group.model, group.kind)
