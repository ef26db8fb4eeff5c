"""One pass over the pool: who waits comes where there is room, else in the place of whoever has most slack.

Decides on a picture taken at its start and kept up to date by its own moves. Order: relieve instances that hold too
much, place who waits, even out load.
"""

from __future__ import annotations

from math import inf

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import Place
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.group import Group, Load, Still, due, kv_blocks, may_leave, too_small
from aegaeon_scheduler.core.policies.slack.reach import Reach
from aegaeon_scheduler.core.policies.slack.table import Table, groups_at, groups_of
from aegaeon_scheduler.core.policies.slack.view import Best, View
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Stage


class Pass:
    """`run` gives the moves."""

    def __init__(self, pool: Pool, settings: SlackSettings, table: Table, now: float) -> None:
        self._pool = pool
        self._table = table
        self._settings = settings
        self._now = now
        self._moves: list[Move] = []
        self._views: dict[str, View] = {}
        self._reach = Reach(pool)
        self._line: list[tuple[float, int, Group, Still]] = []
        self._measured: dict[tuple[int, str, int], Load] = {}
        self._uneven = len({i.slabs * i.slab_bytes for i in pool.instances.values()}) > 1

    def run(self) -> list[Move]:
        """The whole pass."""
        self._table.reap()
        self._table.recast()
        if not self._table.groups:
            return []
        for inst in self._pool.instances.values():
            self._views[inst.id] = self._view(inst)
        self._empty_draining()
        self._relieve()
        self._place_waiting()
        self._rebalance()
        if self._pool.config.admission != "none":
            self._note_line()
        return self._moves

    def _note_line(self) -> None:
        late_s = self._settings.late_slack_s
        waiting = [group for _, _, group, _ in self._line if group.inst is None]
        keys = [(g.model.config.terms.tier.level, g.urgency(self._now, late_s)[0]) for g in waiting]
        placed = sum(1 for move in self._moves if move.instance is not None)
        self._table.line.passed(sorted(keys), placed, self._now)

    def _view(self, inst: Instance) -> View:
        loads = [self._load(g, inst) for g in groups_at(inst) if g.members]
        return View.of(inst, loads, self._settings.headroom, self._reach.lone(inst))

    def _load(self, group: Group, inst: Instance) -> Load:
        return Load.of(group, self._now, self._settings, self._pool.estimates, inst)

    # -- who is about to end ----------------------------------------------------------------------------------------

    def _empty_draining(self) -> None:
        """Groups leave for where their KV can be had; those that have none to go to stay until their instance ends."""
        draining = [view for view in self._views.values() if view.inst.closed]
        for view in draining:
            view.free = False
            for load in [x for x in view.loads if may_leave(x.group) and self._has_refuge(x.group, view.inst)]:
                self._evict(view, load, f"{view.inst.id} is draining")
        if draining:
            for _, _, group, rest in self._waiting():
                self._shelter(group, rest)

    def _shelter(self, group: Group, rest: Still) -> None:
        """One that has left joins the group of its model where there is one, as no instance has two of a model."""
        homes = {seq.home for seq in group.members.values() if seq.home is not None}
        if rest.only is not None or not any(home.closed for home in homes):
            return
        for other in groups_of(group.model):
            inst = other.inst
            if inst is not None and inst.node == rest.node and other.kind is group.kind and group.may_go(inst):
                members = tuple(group.members.values())
                self._table.merge(group, other)
                self._moves.append(Move(group.model, members, inst, "joins its model where no engine is draining"))
                return

    def _has_refuge(self, group: Group, inst: Instance) -> bool:
        here = any(seq.place is not Place.NONE for seq in group.members.values())
        return any(group.may_go(i) and (not here or i.node == inst.node) for i in self._pool.instances.values())

    # -- too much on an instance ------------------------------------------------------------------------------------

    def _relieve(self) -> None:
        for view in self._views.values():
            inst = view.inst
            over = view.nbytes > view.size * (1.0 - self._settings.headroom * self._settings.relief_share)
            if not (over or (inst.stuck and not inst.count)) or not view.loads:
                continue
            victims = [x for x in view.loads if may_leave(x.group)]
            if victims and len(view.loads) > 1:
                self._evict(view, max(victims, key=lambda x: (x.slack, x.group.number)), f"{inst.id} holds too much")
            elif len(view.loads) == 1 and over:
                self._halve_here(view, view.loads[0].group)

    def _halve_here(self, view: View, group: Group) -> None:
        """A group that has outgrown its instance alone: those due last leave as a group of their own."""
        here = [s for s in group.members.values() if s.copy is None and s.stage is Stage.DECODE]
        here = [s for s in here if s.place is Place.DEVICE]
        leaving = sorted(here, key=due)[-(len(group.members) // 2) :] if len(group.members) > 1 else []
        blocks = sum(kv_blocks(s) for s in leaving)
        if leaving and view.inst.book.host_room(group.model.fp, blocks):
            self._table.move(leaving, group.model, group.kind)
            self._moves.append(Move(group.model, tuple(leaving), None, f"{group.model.name} outgrew {view.inst.id}"))

    def _evict(self, view: View, load: Load, reason: str) -> None:
        group = load.group
        view.drop(load)
        self._table.remove(group)
        self._moves.append(Move(group.model, tuple(group.members.values()), None, reason))
        room = view.size - load.weights
        if load.nbytes - load.weights > self._settings.split_share * room and len(group.members) > 1:
            members = sorted(group.members.values(), key=due)
            self._table.move(members[len(members) // 2 :], group.model, group.kind)

    # -- who waits --------------------------------------------------------------------------------------------------

    def _place_waiting(self) -> None:
        free = [v for v in self._views.values() if v.free]
        if not free:
            return
        best = Best.of(free)
        self._line = self._waiting()
        for rank, _, group, rest in self._line:
            if not free:
                return
            if best.beyond(group, rank, rest, self._settings.preempt_share):
                continue
            views = self._candidates(group, rest, free)
            if views and (
                self._to_room(group, views) or self._in_place_of(group, views) or self._at_any_rate(group, views)
            ):
                free = [v for v in free if v.free]
                best = Best.of(free)

    def _waiting(self) -> list[tuple[float, int, Group, Still]]:
        """Groups that wait and are at rest, by rank."""
        waiting = []
        for group in self._table.groups.values():
            if group.inst is None and group.model.footprint is not None:
                rest = group.rest()
                if rest is not None:
                    waiting.append((group.order(self._now, self._settings).rank, group.number, group, rest))
        waiting.sort(key=lambda item: item[:2])
        return waiting

    def _candidates(self, group: Group, rest: Still, free: list[View]) -> list[View]:
        only = rest.only or group.target
        group.target = None
        name, node, views = group.model.name, rest.node, []
        for view in free:
            inst = view.inst
            if (only is not None and inst is not only) or (node is not None and inst.node != node):
                continue
            if not group.may_go(inst) or name in view.models:
                continue
            if self._uneven and node is None and too_small(self._pool, inst, group.model, rest.longest):
                continue
            views.append(view)
        if only is not None or not self._reach.limited:
            return views
        near = [view for view in views if self._reach.near(name, view.inst)]
        return near or [view for view in views if self._reach.may_read(name, view.inst, node)]

    def _as_on(self, group: Group, inst: Instance) -> Load:
        """A waiting group measured for an instance; alike for all of one make."""
        key = (group.number, inst.device, inst.slab_bytes)
        load = self._measured.get(key)
        if load is None:
            load = self._measured[key] = self._load(group, inst)
        return load

    def _to_room(self, group: Group, views: list[View]) -> bool:
        """Where there is room, to the least busy with it; an empty instance always takes it. True ends the search."""
        found: tuple[float, float, int, View, Load] | None = None
        for view in views:
            load = self._as_on(group, view.inst)
            if (view.loads or view.lone) and view.over(load) > 0:
                continue
            score = (view.util + load.util, view.util, view.inst.order)
            if found is None or score < found[:3]:
                found = (*score, view, load)
        if found is None:
            return False
        *_, best, load = found
        urgent_s = self._settings.urgent_share * group.model.config.slo.ttft_s
        in_time = best.util + load.util <= self._settings.full_util or best.util < self._settings.idle_util
        if in_time or load.key - self._now < urgent_s:
            self._come(best, load, "room and time")
        return True  # with room but no time it waits for either

    def _at_any_rate(self, group: Group, views: list[View]) -> bool:
        """Only copies fill every place that it may have: when it is urgent some of them are dropped."""
        view = min(views, key=lambda v: (v.kept(group.model.name) + v.nbytes, v.inst.order))
        load = self._as_on(group, view.inst)
        urgent_s = self._settings.urgent_share * group.model.config.slo.ttft_s
        fits = not view.loads or view.nbytes + load.nbytes <= view.fits
        if not (view.lone and fits and load.key - self._now < urgent_s):
            return False
        self._come(view, load, "only copies give way")
        return True

    def _in_place_of(self, group: Group, views: list[View]) -> bool:
        """The best place among those where whoever has more slack can make room."""
        share_s = self._settings.preempt_share * group.model.config.slo.ttft_s
        best: tuple[float, int, View, list[Load]] | None = None
        for view in views:
            load = self._as_on(group, view.inst)
            victims = self._victims(view, load, load.rank + share_s) if view.most > load.rank + share_s else []
            if victims:
                score = (view.util - max(x.rank for x in victims), view.inst.order)
                if best is None or score < best[:2]:
                    best = (*score, view, victims)
        if best is None:
            return False
        _, _, view, victims = best
        for victim in victims:
            slack_s = victim.key - self._now
            self._evict(view, victim, f"gives way to {group.model.name}, slack {slack_s:.3g} s")
        self._come(view, self._as_on(group, view.inst), "most slack here")
        return True

    def _victims(self, view: View, load: Load, limit: float) -> list[Load]:
        """Groups to evict, most slack first, until it fits; none when it would not or they are too urgent.

        One with turns on the lane may go as well: its copies out wait for them.
        """
        over = view.over(load)
        victims: list[Load] = []
        for x in sorted(view.loads, key=lambda x: (-x.rank, x.group.number)):
            if x.rank <= limit or self._now - x.group.since < self._settings.min_stay_s or not may_leave(x.group):
                continue
            victims.append(x)
            over -= view.freed(x)
            if over <= 0 or len(victims) == len(view.loads):
                return victims
        return []

    def _come(self, view: View, load: Load, why: str) -> None:
        group = load.group
        self._table.place(group, view.inst)
        view.add(load)
        view.free = False
        self._reach.comes(group.model.name, view.inst)
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
            if x.key - self._now <= self._settings.move_slack_s:
                return
            group = x.group
            if x.group.since == inf or not group.may_go(least.inst) or not may_leave(group):
                continue
            if not self._reach.near(group.model.name, least.inst):
                continue
            if least.nbytes + x.nbytes > least.fits or least.inst.node != view.inst.node:
                continue
            if least.inst.device != view.inst.device and least.util + self._as_on(group, least.inst).util > view.util:
                continue  # slower there than here
            self._evict(view, x, f"{view.inst.id} cannot keep up: moves to {least.inst.id}")
            group.target = least.inst
            return
