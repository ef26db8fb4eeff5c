"""`check()`: every table agrees with every other. Callable at any time between events; raises ConservationError."""

from __future__ import annotations

from aegaeon_scheduler.core.commands import SwapOut as Out
from aegaeon_scheduler.core.commands import Turn, Unload
from aegaeon_scheduler.core.domain import Phase, Stage
from aegaeon_scheduler.core.errors import ConservationError
from aegaeon_scheduler.core.policies import Policy
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model


def check(pool: Pool, policy: Policy) -> None:
    """Compare counters with what they count, and both ends of every link."""
    for inst in pool.instances.values():
        _instance(pool, inst)
    for seq in pool.sequences.values():
        _same(seq.home is None or seq.home.sequences.get(seq.id) is seq, f"{seq.id} is not listed at its home")
        _same(seq.home is None or pool.instances.get(seq.home.id) is seq.home, f"{seq.id} lives on a gone instance")
        _same(seq.home is not None or not seq.opened, f"{seq.id} is open nowhere")
        _same(seq.stage is not Stage.DECODE or policy.batch_of(seq) is not None, f"{seq.id} decodes in no batch")
    for seq in pool.suspects.values():
        _same(pool.sequences.get(seq.id) is seq and seq.suspected > 0, f"{seq.id} is a suspect, but gone or cleared")
    queued = sum(1 for s in pool.sequences.values() if s.stage is Stage.QUEUED)
    _same(queued == pool.queued, f"{queued} sequences are queued, the counter says {pool.queued}")
    _same(pool.fleet.agrees(), "the instances that may take a model are others than those that were found")
    for what in policy.check(pool.now):
        _same(False, what)
    for model in pool.models.values():
        holders = {i.id for i in pool.instances.values() if _has(i, model)}
        _same(holders == set(model.holders), f"{model.name} is on {sorted(holders)}, listed: {sorted(model.holders)}")
        cached = {i.id for i in pool.instances.values() if i.phases.get(model.name) is Phase.CACHED}
        _same(
            cached == set(model.cached), f"{model.name} is cached by {sorted(cached)}, listed: {sorted(model.cached)}"
        )
        mine = [s for s in pool.sequences.values() if s.model is model]
        running = sum(1 for s in mine if s.stage not in (Stage.QUEUED, Stage.LOST))
        _same(running == model.running, f"{model.name}: {running} run, the counter says {model.running}")


def _instance(pool: Pool, inst: Instance) -> None:
    commands = inst.commands.values()
    granted = sum(c.grant for c in commands)
    _same(granted == inst.book.granted, f"{inst.id}: {granted} slabs are granted, the book says {inst.book.granted}")
    host = sum(c.host_grant for c in commands)
    _same(host == inst.book.host_granted, f"{inst.id}: host grants {host}, the book says {inst.book.host_granted}")
    making = sum(1 for c in commands if isinstance(c.body, (Unload, Out)))
    _same(making == inst.count, f"{inst.id}: {making} commands make room, the counter says {inst.count}")
    turns = [c for c in commands if isinstance(c.body, Turn)]
    _same(turns == inst.turns, f"{inst.id}: turns on the lane differ from the in-flight commands")
    _same(len(turns) <= pool.config.lane_depth, f"{inst.id}: {len(turns)} turns on the lane")
    for seq in inst.sequences.values():
        _same(pool.sequences.get(seq.id) is seq and seq.home is inst, f"{inst.id} lists {seq.id}, which is elsewhere")
        _same(not inst.lacks(seq), f"{seq.id} is on {inst.id}, where its adapter failed")
        _same(inst.id not in seq.model.cut_off, f"{seq.id} is on {inst.id}, beside which its model decodes nowhere")
        for turn in seq.turns:
            _same(turn in inst.commands, f"{seq.id} is in turn {turn}, which is not out")
    distinct = {id(w.shared): w.shared for w in inst.weights.values()}
    for weights in inst.weights.values():
        _same(weights in weights.shared.members, f"{inst.id}: {weights.model.name} is not among those in its slabs")
    booked = sum(shared.slabs for shared in distinct.values() if shared.booked)
    _same(booked <= inst.book.weights, f"{inst.id}: {booked} slabs of weights, the book says {inst.book.weights}")
    loads = {id for id in inst.book.loads if id not in inst.commands}
    _same(not loads, f"{inst.id}: loads {sorted(loads)} are in the book but not out")


def _has(inst: Instance, model: Model) -> bool:
    weights = inst.weights.get(model.name)
    return weights is not None and weights.model is model


def _same(holds: bool, what: str) -> None:
    if not holds:
        raise ConservationError(what)
