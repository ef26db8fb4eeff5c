"""`check()`: every table agrees with every other. Callable at any time between events; raises ConservationError."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from aegaeon_scheduler.core.commands import SwapOut as Out
from aegaeon_scheduler.core.commands import Turn, Unload
from aegaeon_scheduler.core.domain import Phase, Role, Stage
from aegaeon_scheduler.core.errors import ConservationError
from aegaeon_scheduler.core.nodes import reach
from aegaeon_scheduler.core.policies import Policy
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model


def check(pool: Pool, policy: Policy) -> None:
    """Compare counters with what they count, and both ends of every link."""
    for what in _contradictions(pool, policy):
        raise ConservationError(what)


def _contradictions(pool: Pool, policy: Policy) -> Iterator[str]:
    """Disagreements between tables, in words: only made when there are any, since tests check after every event."""
    for inst in pool.instances.values():
        yield from _of_commands(pool, inst)
        yield from _of_places(pool, inst)
    yield from _of_sequences(pool)
    yield from _of_held(pool)
    if not pool.fleet.agrees():
        yield "the instances that may take a model are others than those that were found"
    yield from pool.prefixes.check()
    yield from policy.check(pool.now)
    running = Counter(s.model for s in pool.sequences.values() if s.stage not in (Stage.QUEUED, Stage.LOST))
    for model in pool.models.values():
        yield from _of_model(pool, model, running[model])


def _of_commands(pool: Pool, inst: Instance) -> Iterator[str]:
    commands = inst.commands.values()
    if (granted := sum(c.grant for c in commands)) != inst.book.granted:
        yield f"{inst.id}: {granted} slabs are granted, the book says {inst.book.granted}"
    if (host := sum(c.host_grant for c in commands)) != inst.book.host_granted:
        yield f"{inst.id}: host grants {host}, the book says {inst.book.host_granted}"
    if (making := sum(1 for c in commands if isinstance(c.body, (Unload, Out)))) != inst.count:
        yield f"{inst.id}: {making} commands make room, the counter says {inst.count}"
    if [c for c in commands if isinstance(c.body, Turn)] != inst.turns:
        yield f"{inst.id}: turns on the lane differ from the in-flight commands"
    if inst.lane_length > pool.config.lane_depth:
        yield f"{inst.id}: {inst.lane_length} turns on the lane"
    if loads := {id for id in inst.book.loads if id not in inst.commands}:
        yield f"{inst.id}: loads {sorted(loads)} are in the book but not out"


def _of_places(pool: Pool, inst: Instance) -> Iterator[str]:
    """Sequences, weights and partners of an instance."""
    connected = [o.id for o in pool.instances.values() if reach(inst, o) and _halves(inst, o)]
    if sorted(connected) != sorted(other.id for other in inst.partners):
        yield f"{inst.id} can exchange KV with {connected}, listed: {[other.id for other in inst.partners]}"
    for seq in inst.sequences.values():
        if pool.sequences.get(seq.id) is not seq or seq.home is not inst:
            yield f"{inst.id} lists {seq.id}, which is elsewhere"
        if inst.lacks(seq):
            yield f"{seq.id} is on {inst.id}, where its adapter failed"
        if seq.stage is Stage.QUEUED and not inst.hands_over(seq.model):
            yield f"{seq.id} waits for {inst.id}, and nothing that it can reach decodes its model"
        for turn in seq.turns:
            if turn not in inst.commands:
                yield f"{seq.id} is in turn {turn}, which is not out"
    for weights in inst.weights.values():
        if weights not in weights.shared.members:
            yield f"{inst.id}: {weights.model.name} is not among those in its slabs"
    distinct = {id(w.shared): w.shared for w in inst.weights.values()}
    if (booked := sum(shared.slabs for shared in distinct.values() if shared.booked)) > inst.book.weights:
        yield f"{inst.id}: {booked} slabs of weights, the book says {inst.book.weights}"


def _of_sequences(pool: Pool) -> Iterator[str]:
    for seq in pool.sequences.values():
        if seq.home is None:
            if seq.opened:
                yield f"{seq.id} is open nowhere"
        elif seq.home.sequences.get(seq.id) is not seq:
            yield f"{seq.id} is not listed at its home"
        elif pool.instances.get(seq.home.id) is not seq.home:
            yield f"{seq.id} lives on a gone instance"
        if seq.stage is Stage.DECODE and seq.batch is None:
            yield f"{seq.id} decodes in no batch"
    for seq in pool.suspects.values():
        if pool.sequences.get(seq.id) is not seq or seq.suspected <= 0:
            yield f"{seq.id} is a suspect, but gone or cleared"
    for seq in pool.gated.values():
        if seq.home is not None or seq.stage is not Stage.QUEUED or seq.id not in seq.model.waiting:
            yield f"{seq.id} is at the KV gate, but does not wait"
    if (queued := sum(1 for s in pool.sequences.values() if s.stage is Stage.QUEUED)) != pool.queued:
        yield f"{queued} sequences are queued, the counter says {pool.queued}"


def _of_held(pool: Pool) -> Iterator[str]:
    """Disagreements about KV that no gateway has claimed."""
    at_instances = {(seq, inst.id) for inst in pool.instances.values() for seq in inst.held}
    if at_instances != {(seq, instance) for seq, holders in pool.held.items() for instance in holders}:
        yield "what instances hold without a claim is not what the pool lists"
    if empty := [seq for seq, holders in pool.held.items() if not holders]:
        yield f"{empty[0]} is listed as held, by no instance"


def _of_model(pool: Pool, model: Model, running: int) -> Iterator[str]:
    holders = {i.id for i in pool.instances.values() if _has(i, model)}
    if holders != model.holders.keys():
        yield f"{model.name} is on {sorted(holders)}, listed: {sorted(model.holders)}"
    cached = {i.id for i in pool.instances.values() if i.phases.get(model.name) is Phase.CACHED}
    if cached != model.cached.keys():
        yield f"{model.name} is cached by {sorted(cached)}, listed: {sorted(model.cached)}"
    if running != model.running:
        yield f"{model.name}: {running} run, the counter says {model.running}"


def _halves(inst: Instance, other: Instance) -> bool:
    return (inst.role is Role.PREFILL) is not (other.role is Role.PREFILL)


def _has(inst: Instance, model: Model) -> bool:
    weights = inst.weights.get(model.name)
    return weights is not None and weights.model is model
