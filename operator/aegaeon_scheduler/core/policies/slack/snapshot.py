"""The pool that a pass decides on: as it was at the start of the pass, kept up to date by its own moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.engines import View
from aegaeon_scheduler.core.policies.slack.group import Group, Load
from aegaeon_scheduler.core.policies.slack.order import Order, Still
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.policies.slack.weights import Reach
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance

Waiting = tuple[float, int, Group, Order, Still]
"""rank, number, the group, its order, what of it does not change while it waits"""


class Picture:
    """The pass's view of what instances hold and can take (`views`), and the `moves` so far."""

    def __init__(self, pool: Pool, settings: SlackSettings, table: Table, now: float) -> None:
        self.pool = pool
        self.settings = settings
        self.table = table
        self.now = now
        self.moves: list[Move] = []
        self.reach = Reach(pool, table)
        self.views = table.views()
        self._measured: dict[tuple[int, str, int], Load] = {}
        self._leaving: dict[View, list[Load]] = {}
        for view in self.views:
            view.take_loads()
            if self.reach.limited:
                view.lone = self.reach.lone(view.inst)

    def note(self, view: View) -> View:
        """See View.note: before what is on it is compared, and before a pass changes a group on it."""
        view.note(self.now, self.settings)
        return view

    def load_on(self, group: Group, inst: Instance) -> Load:
        """A group measured for an instance that it is not on; the same for all of one make."""
        key = (group.number, inst.device, inst.slab_bytes)
        load = self._measured.get(key)
        if load is None:
            load = group.load(self.pool.estimates, inst).note(self.now, self.settings)
            self._measured[key] = load
        return load

    def leaving(self, view: View) -> list[Load]:
        """Groups there that may be preempted by now, latest due first, whatever comes for them.

        One with in-flight turns may go as well: its copies out wait for them.
        """
        loads = self._leaving.get(view)
        if loads is None:
            stay_s, now = self.settings.min_stay_s, self.now
            loads = [x for x in view.loads if now - x.group.since >= stay_s and x.group.may_leave(begun=True)]
            loads.sort(key=lambda x: (-x.rank, x.group.number))
            self._leaving[view] = loads
        return loads

    def waiting(self, groups: Iterable[Group] | None = None) -> Iterator[Waiting]:
        """Groups that wait and are at rest: of these, or all. Sorted, they are in order of rank."""
        for group in self.table.waiting.values() if groups is None else groups:
            if group.model.footprint is not None:
                rest = group.rest()
                if rest is not None:
                    order = group.order(self.now, self.settings)
                    yield order.rank, group.number, group, order, rest

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
        """A group leaves its instance and waits."""
        group = load.group
        view.drop(load)
        self.table.remove(group)
        self.moves.append(Move(group.model, tuple(group.members.values()), None, reason))
