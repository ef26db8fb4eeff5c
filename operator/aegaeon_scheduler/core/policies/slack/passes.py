"""One pass over the pool: who waits comes where there is room, else in the place of whoever has most slack.

Decides on a picture taken at its start and kept up to date by its own moves. Order: relieve instances that hold too
much, place who waits, even out load.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from aegaeon_scheduler.core.config import PolicySettings
from aegaeon_scheduler.core.model import Place
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.group import Group, Load, due, may_leave, node_of, pinned
from aegaeon_scheduler.core.policies.slack.table import Table, groups_at
from aegaeon_scheduler.core.state import Instance, Pool, Stage


@dataclass(slots=True)
class View:
    """An instance: what its groups ask of it. `free`: no load is under way or waits for room."""

    inst: Instance
    loads: list[Load]
    util: float
    nbytes: int
    size: int
    free: bool

    def add(self, load: Load) -> None:
        """A group comes."""
        self.loads.append(load)
        self.util += load.util
        self.nbytes += load.nbytes

    def drop(self, load: Load) -> None:
        """A group goes."""
        self.loads.remove(load)
        self.util -= load.util
        self.nbytes -= load.nbytes


class Pass:
    """`run` gives the moves."""

    def __init__(self, pool: Pool, table: Table, now: float) -> None:
        self._pool = pool
        self._table = table
        self._settings: PolicySettings = pool.config.policy
        self._now = now
        self._moves: list[Move] = []
        self._views: dict[str, View] = {}

    def run(self) -> list[Move]:
        """The whole pass."""
        self._table.reap()
        self._table.recast()
        if not self._table.groups:
            return []
        for inst in self._pool.instances.values():
            self._views[inst.id] = self._view(inst)
        self._relieve()
        self._place_waiting()
        self._rebalance()
        return self._moves

    def _view(self, inst: Instance) -> View:
        loads = [self._load(g, inst) for g in groups_at(inst) if g.members]
        free = not (inst.wanted or inst.book.loads or inst.incoming)
        size = inst.slabs * inst.slab_bytes
        return View(inst, loads, sum(x.util for x in loads), sum(x.nbytes for x in loads), size, free)

    def _load(self, group: Group, inst: Instance) -> Load:
        return Load.of(group, self._now, self._settings.late_slack_s, self._pool.estimates, inst)

    # -- too much on an instance ------------------------------------------------------------------------------------

    def _relieve(self) -> None:
        for view in self._views.values():
            inst = view.inst
            over = view.nbytes > view.size * (1.0 - self._settings.headroom / 4)
            if not (over or (inst.stuck and not inst.count)) or not view.loads:
                continue
            victims = [x for x in view.loads if may_leave(x.group)] if len(view.loads) > 1 else []
            if victims:
                self._evict(view, max(victims, key=lambda x: (x.key, x.group.number)), f"{inst.id} holds too much")
            elif len(view.loads) == 1 and over:
                self._halve_here(view, view.loads[0].group)

    def _halve_here(self, view: View, group: Group) -> None:
        """A group that has outgrown its instance alone: those due last leave as a group of their own."""
        idle = [s for s in group.members.values() if not s.turns and s.copy is None and s.stage is Stage.DECODE]
        idle = [s for s in idle if s.place is Place.DEVICE]
        leaving = sorted(idle, key=due)[-(len(group.members) // 2) :] if len(group.members) > 1 else []
        if leaving:
            self._table.move(leaving, group.model, group.kind)
            self._moves.append(Move(group.model, tuple(leaving), None, f"{group.model.name} outgrew {view.inst.id}"))

    def _evict(self, view: View, load: Load, reason: str) -> None:
        group = load.group
        view.drop(load)
        self._table.remove(group)
        self._moves.append(Move(group.model, tuple(group.members.values()), None, reason))
        if load.nbytes > self._settings.split_share * view.size and len(group.members) > 1:
            members = sorted(group.members.values(), key=due)
            self._table.move(members[len(members) // 2 :], group.model, group.kind)

    # -- who waits --------------------------------------------------------------------------------------------------

    def _place_waiting(self) -> None:
        if not any(v.free for v in self._views.values()):
            return
        late_s = self._settings.late_slack_s
        waiting = [g for g in self._table.groups.values() if g.inst is None and g.model.footprint is not None]
        for _, group in sorted(
            ((g.key(self._now, late_s), g) for g in waiting), key=lambda item: (item[0], item[1].number)
        ):
            if any(seq.copy is not None for seq in group.members.values()):
                continue  # its KV is still on its way to the host
            views = self._candidates(group)
            if views and not self._to_room(group, views):
                self._in_place_of(group, views)

    def _candidates(self, group: Group) -> list[View]:
        only, node = pinned(group), node_of(group)
        if group.target is not None and only is None:
            only = group.target
        group.target = None
        views = []
        for view in self._views.values():
            if not view.free or not group.may_go(view.inst) or (only is not None and view.inst is not only):
                continue
            if node is not None and view.inst.node != node:
                continue
            if not any(x.group.model is group.model for x in view.loads):
                views.append(view)
        return views

    def _to_room(self, group: Group, views: list[View]) -> bool:
        """Where there is room, to the least busy; an empty instance always takes it."""
        urgent_s = self._settings.urgent_share * group.model.config.slo.ttft_s
        best: tuple[float, int, View, Load] | None = None
        for view in views:
            load = self._load(group, view.inst)
            if view.loads and view.nbytes + load.nbytes > view.size * (1.0 - self._settings.headroom):
                continue
            if best is None or (view.util, view.inst.order) < best[:2]:
                best = (view.util, view.inst.order, view, load)
        if best is None:
            return False
        util, _, view, load = best
        if util + load.util > self._settings.full_util and util >= 0.02 and load.key - self._now >= urgent_s:
            return True  # there is room but no time: wait for either
        self._come(view, load, "room and time")
        return True

    def _in_place_of(self, group: Group, views: list[View]) -> None:
        """The best place among those where whoever has more slack can make room."""
        best: tuple[float, int, View, Load, list[Load]] | None = None
        for view in views:
            load = self._load(group, view.inst)
            victims = self._victims(view, load)
            if victims:
                score = (-max(x.key for x in victims) + view.util, view.inst.order)
                if best is None or score < best[:2]:
                    best = (*score, view, load, victims)
        if best is None:
            return
        _, _, view, load, victims = best
        for victim in victims:
            slack = victim.key - self._now
            self._evict(view, victim, f"gives way to {group.model.name}, slack {slack:.3g} s")
        self._come(view, load, "most slack here")

    def _victims(self, view: View, load: Load) -> list[Load]:
        """Groups to evict, most slack first, until it fits; none when it would not or they are too urgent."""
        fits = view.size * (1.0 - self._settings.headroom)
        limit = load.key + self._settings.give_way_share * load.group.model.config.slo.ttft_s
        over = view.nbytes + load.nbytes - fits
        victims: list[Load] = []
        for x in sorted(view.loads, key=lambda x: (-x.key, x.group.number)):
            if x.key <= limit:
                break
            if self._now - x.group.since < self._settings.min_stay_s or not may_leave(x.group):
                continue
            victims.append(x)
            over -= x.nbytes
            if over <= 0 or len(victims) == len(view.loads):
                return victims
        return []

    def _come(self, view: View, load: Load, why: str) -> None:
        group = load.group
        self._table.place(group, view.inst)
        view.add(load)
        view.free = False
        reason = f"{why}, slack {load.key - self._now:.3g} s"
        self._moves.append(Move(group.model, tuple(group.members.values()), view.inst, reason))

    # -- load -------------------------------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        """From the two busiest, when they cannot keep up: the group with most slack moves to the least busy."""
        views = sorted(self._views.values(), key=lambda v: (-v.util, v.inst.order))
        for view in views[:2]:
            if view.util < self._settings.busy_util or len(view.loads) < 2:
                return
            worst = min(x.key for x in view.loads) - self._now
            if worst < self._settings.busy_slack_s:
                self._move_from(view)

    def _move_from(self, view: View) -> None:
        least = min((v for v in self._views.values() if v.free), key=lambda v: (v.util, v.inst.order), default=None)
        if least is None or view.util - least.util < self._settings.busy_gap:
            return
        for x in sorted(view.loads, key=lambda x: (-x.key, x.group.number)):
            if x.key - self._now <= 1.0:
                return
            group, fits = x.group, least.size * (1.0 - self._settings.headroom)
            if x.group.since == inf or not group.may_go(least.inst) or not may_leave(group):
                continue
            if least.nbytes + x.nbytes > fits or least.inst.node != view.inst.node:
                continue
            self._evict(view, x, f"{view.inst.id} cannot keep up: moves to {least.inst.id}")
            group.target = least.inst
            return
