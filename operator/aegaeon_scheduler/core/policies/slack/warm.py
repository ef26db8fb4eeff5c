"""The warm set: weights of models that will probably be asked for are loaded before they are, where that costs nothing.

Free memory of an engine that has time is filled, those expected soonest first; idle weights make room for models that
are expected twice as often. Nothing is loaded while a group waits for an engine, or has little slack on this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import exp

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.policies.slack.view import View
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.shared_weights import slabs_to_load
from aegaeon_scheduler.core.state import Instance, Model, Weights

_LATELY_S, _LONG_S = 60.0, 3600.0  # seconds over which requests are counted: a rate that has doubled shows in the first
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
        self.long *= exp((self.at - now) / _LONG_S)
        self.at = now

    def rate(self, now: float) -> float:
        """Requests a second that are expected."""
        self._fade(now)
        hour = int((now + _AHEAD_S) // _HOUR_S) % _HOURS
        return max(self.lately / _LATELY_S, self.long / _LONG_S, self.hours[hour] / _HOUR_S)


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
        self._next = now + self._settings.warm_gap_s
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
        if not view.free or unloads or view.inst.draining or view.util > self._settings.hot_util:
            return False
        least_s = self._settings.busy_slack_s
        urgencies = ((g, *g.urgency(now, 0.0)) for g in view.groups if g.members)
        return all(
            alive == len(g.members)
            and key - now > min(least_s, self._settings.urgent_share * g.model.config.slo.ttft_s)
            for g, key, alive in urgencies
        )

    def _into(self, inst: Instance, cold: Iterable[Model], now: float) -> Move | None:
        """The first of them for which there is room beside what runs and some growth of it."""
        reserve = int(self._settings.warm_reserve * inst.slabs)
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
        for weights in self._idle(inst):
            if self.rate(weights.model, now) < limit:
                slabs += weights.slabs
                if slabs >= missing:
                    return slabs
        return 0

    def _idle(self, inst: Instance) -> Iterator[Weights]:
        live = self._table.live(inst)
        return (w for name, w in inst.weights.items() if name not in live and w.ready and w.unload is None)
