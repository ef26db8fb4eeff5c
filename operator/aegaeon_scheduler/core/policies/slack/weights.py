"""Weights beyond what groups use: how near they are where host memory does not hold them all, and what is loaded ahead.

Devices and host memory are one cache: a group is placed where a copy is, and a model's only copy is the last to go. The
warm set fills free memory of engines that have time with models that will probably be asked for, those expected soonest
first; idle weights make room for models that are expected twice as often. Nothing is loaded while a group waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import ModelName
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.engines import View
from aegaeon_scheduler.core.policies.slack.order import HOT_UTIL, URGENT_SHARE
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.shared_weights import slabs_to_load
from aegaeon_scheduler.core.state import Instance, Model, Weights

STALE_S = 600.0
"""after which a model without requests loses its place in host memory to one that is read from disk"""


def near(pool: Pool, name: ModelName, inst: Instance) -> bool:
    """Returns whether the weights are on the instance, or in its node's memory."""
    weights = inst.weights.get(name)
    return (weights is not None and weights.unload is None) or pool.hosts.has(inst.node, name)


def lone(pool: Pool, name: ModelName, inst: Instance) -> bool:
    """Returns whether the weights on this instance are the only quick copy: dropped, they come back from a disk."""
    if pool.hosts.has(inst.node, name):
        return False
    return not any(other is not inst and near(pool, name, other) for other in pool.instances.values())


def idle_order(pool: Pool, inst: Instance, idle: list[Weights]) -> list[Weights]:
    """Weights in unload order: least recently used first, only copies of a model last."""
    return sorted(idle, key=lambda w: (lone(pool, w.model.name, inst), w.used))


def past_host(pool: Pool, inst: Instance) -> bool:
    """Returns whether a load from disk is to leave the node's host memory as it is: all models in it are still asked
    for.
    """
    cached = pool.hosts.cached(inst.node)
    since = pool.now - STALE_S
    return cached is not None and all(pool.models[n].asked_at > since for n in cached if n in pool.models)


class Reach:
    """A picture for one pass. Disks read for one load at a time: a second one would make both late."""

    def __init__(self, pool: Pool, table: Table) -> None:
        self._pool = pool
        self._table = table
        self.limited = pool.hosts.limited
        self._reading = {inst.node for inst in pool.instances.values() if self.limited and self._reads(inst)}

    def _reads(self, inst: Instance) -> bool:
        """Returns whether an instance's weights lane has a model to read from the node's disk."""
        coming = [name for name, weights in inst.weights.items() if not weights.ready]
        return any(not self._pool.hosts.has(inst.node, name) for name in (*coming, *inst.wanted))

    def lone(self, inst: Instance) -> dict[ModelName, int]:
        """Bytes of each model whose only quick copy is here."""
        if not self.limited:
            return {}
        present = ((name, w) for name, w in inst.weights.items() if w.unload is None)
        return {name: w.slabs * inst.slab_bytes for name, w in present if lone(self._pool, name, inst)}

    def may_read(self, name: ModelName, inst: Instance, node: str | None) -> bool:
        """Returns whether to read a model from this node's disk: it is near to no instance (of `node`, if set) that has
        no group of it yet, and the disk is free.
        """
        if inst.node in self._reading:
            return False
        places = (i for i in self._pool.instances.values() if node in (None, i.node) and near(self._pool, name, i))
        return not any(all(g.model.name != name for g in self._table.at(i)) for i in places)

    def comes(self, name: ModelName, inst: Instance) -> None:
        """A group of the model was placed there."""
        if not near(self._pool, name, inst):
            self._reading.add(inst.node)


WARM_GAP_S, WARM_RESERVE = 1.0, 0.1
"""between two of these loads on a node, which leave the link to others; share of an instance that they leave free for
growth"""
_LATELY_S = 60.0  # over which requests are counted, beside an hour: a rate that has doubled shows in it
_HOUR_S, _HOURS = 3600.0, 24
_AHEAD_S = 300.0  # before an hour of the day in which a model is asked for
_TIMES = 2.0  # as often as what is unloaded for it


@dataclass(slots=True)
class Asked:
    """Requests of one model: faded counts, and those of each hour of the day, the last day counting half."""

    at: float = 0.0
    lately: float = 0.0
    long: float = 0.0
    hours: list[float] = field(default_factory=lambda: [0.0] * _HOURS)
    days: list[int] = field(default_factory=lambda: [-1] * _HOURS)

    def count(self, now: float) -> None:
        """One more request."""
        self._fade(now)
        self.lately += 1.0
        self.long += 1.0
        day, hour = divmod(int(now // _HOUR_S), _HOURS)
        if self.days[hour] != day:
            self.hours[hour] *= 0.5
            self.days[hour] = day
        self.hours[hour] += 0.5

    def _fade(self, now: float) -> None:
        self.lately *= exp((self.at - now) / _LATELY_S)
        self.long *= exp((self.at - now) / _HOUR_S)
        self.at = now

    def rate(self, now: float) -> float:
        """Requests a second that are expected."""
        self._fade(now)
        hour = int((now + _AHEAD_S) // _HOUR_S) % _HOURS
        return max(self.lately / _LATELY_S, self.long / _HOUR_S, self.hours[hour] / _HOUR_S)


class Warm:
    """Counts requests, and says what to load ahead. Off unless `SlackSettings.warm`."""

    def __init__(self, pool: Pool, settings: SlackSettings, table: Table) -> None:
        self._pool = pool
        self._settings = settings
        self._table = table
        self._asked: dict[Model, Asked] = {}
        self._next = 0.0
        self._sent: list[Move] = []

    def count_request(self, model: Model, now: float) -> None:
        """A request of it has come."""
        if self._settings.warm:
            self._asked.setdefault(model, Asked()).count(now)

    def rate(self, model: Model, now: float) -> float:
        """Requests a second that are expected of it."""
        requests = self._asked.get(model)
        return requests.rate(now) if requests is not None else 0.0

    def order(self, idle: list[Weights], now: float) -> list[Weights]:
        """Idle weights in the order in which they are unloaded: those expected least often first."""
        return sorted(idle, key=lambda w: self.rate(w.model, now)) if self._settings.warm else idle

    def withdraw(self) -> None:
        """Before a pass: what could not begin to load is no longer wanted, as it would keep others out."""
        for move in self._sent:
            inst = move.instance
            if inst is not None and inst.wanted.get(move.model.name) == move.reason:
                del inst.wanted[move.model.name]
        self._sent = []

    def moves(self, now: float) -> list[Move]:
        """At a pass: at most one load for each node, where it makes nothing late."""
        if not self._settings.warm or now < self._next or self._table.waiting:
            return []
        self._next = now + WARM_GAP_S
        self._asked = {
            model: requests for model, requests in self._asked.items() if self._pool.models.get(model.name) is model
        }
        cold = self._cold(now)
        moves: dict[str, Move] = {}
        for view in sorted(self._table.views(), key=lambda v: (v.util, v.inst.order)):
            if cold and view.inst.node not in moves and self._idles(view, now):
                move = self._into(view.inst, cold, now)
                if move is not None:
                    moves[view.inst.node] = move
                    cold.remove(move.model)
        self._sent = list(moves.values())
        return self._sent

    def _cold(self, now: float) -> list[Model]:
        """Models whose weights are on no engine, those expected soonest first."""
        present = {name for inst in self._pool.instances.values() for name in (*inst.weights, *inst.wanted)}
        cold = (m for m in self._pool.models.values() if m.name not in present and m.footprint is not None)
        return sorted(cold, key=lambda m: -self.rate(m, now))

    def _idles(self, view: View, now: float) -> bool:
        """Returns whether a load can begin here, and makes no group late: the engine stops for it for a moment."""
        view.take_loads()
        unloads = any(w.unload is not None for w in view.inst.weights.values())
        if not view.free or unloads or view.inst.draining or view.util > HOT_UTIL:
            return False
        urgencies = ((g, *g.urgency(now, 0.0)) for g in view.groups if g.members)
        return all(
            alive == len(g.members) and key - now > URGENT_SHARE * g.model.config.slo.ttft_s
            for g, key, alive in urgencies
        )

    def _into(self, inst: Instance, cold: Iterable[Model], now: float) -> Move | None:
        """The first of them for which there is room beside what runs and some growth of it."""
        reserve = int(WARM_RESERVE * inst.slabs)
        free = inst.book.free() - reserve
        for model in cold:
            need = slabs_to_load(inst, model)
            if inst.has(model) and need <= free + self._worth_less(inst, model, need - free, now):
                return Move(model, (), inst, f"expected {self.rate(model, now):.3g} times a second, loaded ahead")
        return None

    def _worth_less(self, inst: Instance, model: Model, missing: int, now: float) -> int:
        """Slabs of idle weights that are expected half as often at most: as many as are missing, or none."""
        if missing <= 0:
            return 0
        limit, slabs = self.rate(model, now) / _TIMES, 0
        for weights in self._table.idle(inst):
            if self.rate(weights.model, now) < limit:
                slabs += weights.slabs
                if slabs >= missing:
                    return slabs
        return 0
