"""The core: `Scheduler.on(now, event) -> commands`. Deterministic: the same events give the same commands.

An event changes the tables; then each affected compute lane is filled again, up to current and next turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.book import least_slabs
from aegaeon_scheduler.core.claims import Claims
from aegaeon_scheduler.core.commands import Command
from aegaeon_scheduler.core.config import PaperSettings, PrismSettings, SchedulerConfig
from aegaeon_scheduler.core.conservation import check
from aegaeon_scheduler.core.copies import Copies
from aegaeon_scheduler.core.domain import InstanceId, ModelName, RejectCode, Role, SeqId
from aegaeon_scheduler.core.failures import Failures
from aegaeon_scheduler.core.fetches import Fetches
from aegaeon_scheduler.core.handoff import HandOff
from aegaeon_scheduler.core.life import Life
from aegaeon_scheduler.core.mover import Mover
from aegaeon_scheduler.core.nodes import Apart, apart
from aegaeon_scheduler.core.overtaking import Overtaking
from aegaeon_scheduler.core.policies import Policy, Proposal
from aegaeon_scheduler.core.policies.paper import PaperPolicy
from aegaeon_scheduler.core.policies.prism import PrismPolicy
from aegaeon_scheduler.core.policies.slack import SlackPolicy
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.recovery import Recovery
from aegaeon_scheduler.core.reports import Reports
from aegaeon_scheduler.core.residency import Residency
from aegaeon_scheduler.core.room import Room
from aegaeon_scheduler.core.snapshot import Snapshot, kv_used, places, snapshot
from aegaeon_scheduler.core.state import Instance
from aegaeon_scheduler.core.suspects import isolate
from aegaeon_scheduler.core.timers import Timers


def policy_for(pool: Pool) -> Policy:
    """The policy whose settings are given."""
    settings = pool.config.policy
    if isinstance(settings, PaperSettings):
        return PaperPolicy(pool, settings)
    return PrismPolicy(pool, settings) if isinstance(settings, PrismSettings) else SlackPolicy(pool, settings)


class Scheduler:
    """One pool. `now` are seconds on any clock that never goes back; arrivals are on the same clock."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        pool = self._pool = Pool(config or SchedulerConfig())
        policy = self._policy = policy_for(pool)
        timers = self._timers = Timers(pool)
        copies = Copies(pool)
        fetches = Fetches(pool)
        life = self._life = Life(pool, policy, timers, fetches)
        room = Room(pool, policy, copies, life)
        residency = self._residency = Residency(pool, policy, room, copies)
        handoff = self._handoff = HandOff(pool, policy, copies, life, residency)
        self._mover = Mover(pool, copies, residency, room, life, handoff)
        self._overtaking = Overtaking(pool, policy)
        self._reports = Reports(pool, policy, life, handoff)
        self._failures = Failures(pool, life, handoff, self._reports)
        claims = self._claims = Claims(pool, life, residency, handoff)
        self._recovery = Recovery(pool, policy, timers, life, residency, handoff, self._failures, fetches, claims)
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.CatalogChanged: self._recovery.catalog,
            ev.StartHoldChanged: self._start_hold,
            ev.TurnsStretched: self._stretched,
            ev.EnginesExpected: self._expected,
            ev.InstanceUp: self._recovery.up,
            ev.InstanceDown: lambda e: self._recovery.down(e.instance, "disconnected"),
            ev.InstanceDraining: self._of_instance(lambda inst, _: self._recovery.drain(inst)),
            ev.ModelReported: self._recovery.model,
            ev.HostReported: self._host,
            ev.Submitted: self._recovery.submitted,
            ev.Cancelled: self._cancelled,
            ev.GatewayDown: lambda e: self._recovery.gateway_down(e.gateway),
            ev.CommandDone: self._of_instance(self._reports.done),
            ev.TurnProgress: self._of_instance(self._reports.turn),
            ev.CommandFailed: self._of_instance(self._failures.failed),
            ev.CommandSkipped: self._of_instance(self._failures.skipped),
            ev.MemoryReported: self._of_instance(lambda inst, e: self._reports.memory(inst, e.memory)),
            ev.Tick: self._tick,
        }

    @property
    def config(self) -> SchedulerConfig:
        """The settings it was made with."""
        return self._pool.config

    def _start_hold(self, event: ev.StartHoldChanged) -> None:
        self._pool.config = replace(self._pool.config, start_s=event.start_s)

    def _stretched(self, event: ev.TurnsStretched) -> None:
        self._pool.stretch = event.factor

    def _expected(self, event: ev.EnginesExpected) -> None:
        self._pool.expected = None if event.instances is None else frozenset(event.instances)

    def on(self, now: float, event: ev.Event) -> list[Command]:
        """Take one event; returns what is to be done because of it, in order."""
        pool = self._pool
        pool.now = now
        if pool.began is None:
            pool.began = now
        pool.out = []
        self._handlers[type(event)](event)
        dirty = self._life.dirty
        while dirty:
            inst = dirty.pop(next(iter(dirty)))
            if pool.instances.get(inst.id) is inst:
                self._fill(inst)
        self._timers.arm()
        return pool.out

    def snapshot(self, now: float) -> Snapshot:
        """A snapshot of the tables, for people."""
        return snapshot(self._pool, now)

    def kv_used(self) -> float:
        """How full the pool is: see snapshot.kv_used."""
        return kv_used(self._pool)

    def apart(self, name: str) -> Apart | None:
        """Why a model that some engine has is served by no pair of engines; None: it is, or none has it."""
        model = self._pool.models.get(ModelName(name))
        if model is None:
            return None
        places = self._pool.fleet.of(model)
        return apart(model, places.apart[0]) if places.halved else None

    def roles(self, name: str) -> frozenset[Role]:
        """Roles of the engines that requests for a model may go to; PREFILL only where one decodes what it prefills."""
        model = self._pool.models.get(ModelName(name))
        return frozenset() if model is None else self._pool.fleet.of(model).roles

    def role_of(self, instance: InstanceId) -> Role | None:
        """Role of an engine; None: it is not attached, or takes nothing new."""
        inst = self._pool.instances.get(instance)
        return None if inst is None or inst.draining else inst.role

    @property
    def places_version(self) -> int:
        """Rises whenever the engines that may take a model may have changed."""
        return self._pool.fleet.version

    def places(self, before: float) -> dict[SeqId, int]:
        """Places in queues: see snapshot.places."""
        return places(self._pool, before)

    def check(self) -> None:
        """Raises ConservationError when the tables contradict each other."""
        check(self._pool, self._policy)

    def _of_instance(self, handler: Callable[[Instance, Any], None]) -> Callable[[Any], None]:
        def handle(event: Any) -> None:
            inst = self._pool.instances.get(event.instance)
            if inst is not None:
                handler(inst, event)

        return handle

    def _host(self, event: ev.HostReported) -> None:
        self._pool.hosts.report(event.node, event.cached)
        self._pool.ask_pass()

    def _cancelled(self, event: ev.Cancelled) -> None:
        seq = self._pool.sequences.get(event.seq)
        if seq is not None:
            self._life.cancel(seq, "cancelled by its gateway")

    def _tick(self, event: ev.Tick) -> None:
        self._timers.ticked()
        held, lost, leases = self._timers.due()
        for seq in held:
            self._life.overdue(seq)
        for seq in lost:
            self._life.cancel(seq, "its gateway did not submit it again")
        for instance, h in leases:
            self._claims.expire(instance, h)
        if self._timers.reattach_ended():
            for model in list(self._pool.models.values()):
                self._handoff.place_waiting(model)
        if self._pool.pass_at is not None and self._pool.pass_at <= self._pool.now:
            for move in self._policy.pool_pass(self._pool.now):
                self._mover.carry_out(move)

    def _fill(self, inst: Instance) -> None:
        if inst.wanted or inst.incoming:
            self._mover.send_waiting_moves(inst)
        if inst.newcomer is not None:
            self._overtaking.make_room(inst)
        self._fill_lane(inst)
        if inst.newcomer is not None:
            self._overtaking.go_ahead(inst)
        if inst.cold:
            self._residency.warm_up(inst)

    def _fill_lane(self, inst: Instance) -> None:
        barred: list[Proposal] = []
        while inst.lane_length < self._pool.config.lane_depth:
            if inst.turns and inst.turns[-1].alone:
                return
            proposal = self._policy.propose(inst, self._pool.now, barred)
            if proposal is None or (self._isolated(proposal) and inst.turns):
                return  # a suspect waits until the lane is empty
            turn = self._residency.run(inst, proposal)
            if turn is not None:
                self._policy.issued(inst, proposal, turn)
                self._life.started(inst, turn)
                continue
            self._give_up(inst, proposal)
            if inst.commands or inst.memory_due:
                return  # a report will show more room
            barred.append(proposal)

    def _isolated(self, proposal: Proposal) -> bool:
        suspects = self._pool.suspects
        return bool(suspects) and isolate(proposal, suspects, self._pool.config.clearing_tokens)

    def _give_up(self, inst: Instance, proposal: Proposal) -> None:
        """A proposal that an empty instance could not hold either ends its oldest sequence with an answer."""
        if inst.commands or not (proposal.prefill or proposal.decode):
            return
        seq = proposal.prefill[0] if proposal.prefill else proposal.decode[0]
        fp = seq.model.fp
        tokens = max(seq.kv_tokens, seq.prompt_tokens + seq.prefix_tokens) + 1
        need = least_slabs(fp, tokens, inst.slab_bytes)
        if need > inst.slabs:
            self._life.reject(seq, RejectCode.TOO_LONG, f"it has outgrown {inst.id}: {need} of {inst.slabs} slabs")
