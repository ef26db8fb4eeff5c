"""The content of the status stream and the live view: plain frozen copies of the tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from aegaeon_scheduler.core.cache_admission import kv_bytes
from aegaeon_scheduler.core.domain import InstanceId, Memory, ModelName, Place, Role, SeqId, Stage
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model, Sequence


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance; seconds are totals since it was first seen, but for `turn_s`: since its turn began or was reported.

    `first_steps`: that turn may have steps of a model that have not run there yet, which compile.
    """

    instance: InstanceId
    role: Role
    device: str
    resident: tuple[ModelName, ...]
    running: str
    loading: str
    slabs: int
    memory: Memory
    sequences: int
    switches: int
    loads: int
    busy_s: float
    stall_s: float
    switch_s: float
    first_s: float
    ahead_s: float
    reason: str
    draining: bool = False
    turn_s: float = 0.0
    first_steps: bool = False


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model: sequences now, totals since the start. `loads` counts over all instances; `poisoned` counts sequences
    that no engine could go on with, `suspects` those that run alone (see core.suspects). `worked_at`, `answered_at`: on
    the scheduler's clock, as Model has them."""

    model: ModelName
    queued: int
    running: int
    ended: int
    output_tokens: int
    tokens_on_time: int
    loads: int
    busy_s: float
    stall_s: float
    switch_s: float
    poisoned: int = 0
    suspects: int = 0
    worked_at: float = -inf
    answered_at: float = -inf


class SequenceView(NamedTuple):
    """One open sequence. `state`: queued, prefill, hand-off, decode, swapped or lost."""

    seq: SeqId
    model: ModelName
    instance: str
    state: str
    prompt_tokens: int
    output_tokens: int
    age_s: float


@dataclass(frozen=True, slots=True)
class FitView:
    """How well latencies are predicted on one pair: R^2 of the step fit and of the prefill fit."""

    model: str
    device: str
    step_r2: float
    prefill_r2: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The pool at one moment of the scheduler's clock (seconds)."""

    now: float
    policy: str
    instances: tuple[InstanceView, ...]
    models: tuple[ModelView, ...]
    sequences: tuple[SequenceView, ...]
    fits: tuple[FitView, ...]


def snapshot(pool: Pool, now: float) -> Snapshot:
    """Copy the tables. Costs time in proportion to the sequences, models and instances: for people, not for decisions.
    Nothing of it changes afterwards, so it may be read in any thread."""
    return Snapshot(
        now,
        pool.config.policy.name,
        tuple(_instance(i, now) for i in pool.instances.values()),
        tuple(_model(pool, m) for m in pool.models.values()),
        tuple(_sequence(s, now) for s in pool.sequences.values()),
        tuple(FitView(m, d, *estimate.quality()) for (m, d), estimate in pool.estimates.items()),
    )


def kv_used(pool: Pool) -> float:
    """Share, 0 to 1, of the device memory for sequences that they have: all but prefill instances, less the weights
    that sequences here need. Idle weights are unloaded on demand, so they do not count as taken."""
    block_bytes = pool.block_bytes()
    used = room = 0
    for inst in pool.instances.values():
        if inst.role is not Role.PREFILL:
            bytes_used, bytes_room = kv_bytes(inst, block_bytes)
            used, room = used + bytes_used, room + bytes_room
    return min(1.0, used / room) if room > 0 else float(bool(used))


def places(pool: Pool, before: float) -> dict[SeqId, int]:
    """The place of each sequence that is queued and arrived `before` (scheduler's clock, seconds), by arrival: among
    those that wait for the same instance, or, where none has the model yet, for the same model. 1 is the first."""
    ahead: Counter[object] = Counter()
    positions = {}
    queued = (seq for seq in pool.sequences.values() if seq.stage is Stage.QUEUED)
    for seq in sorted(queued, key=lambda seq: seq.arrival):
        queue = seq.home or seq.model
        ahead[queue] += 1
        if seq.arrival < before:
            positions[seq.id] = ahead[queue]
    return positions


def _instance(inst: Instance, now: float) -> InstanceView:
    resident = tuple(name for name, w in inst.weights.items() if w.ready and w.unload is None)
    loading = ", ".join(name for name, w in inst.weights.items() if not w.ready)
    running = str(inst.turns[0].model.name) if inst.turns and inst.turns[0].model is not None else ""
    return InstanceView(
        inst.id, inst.role, inst.device, resident, running, loading, inst.slabs, inst.book.memory,
        len(inst.sequences), inst.switches, inst.loads, inst.busy_s, inst.stall_s, inst.switch_s,
        inst.first_s, inst.ahead_s, inst.reason, inst.draining, now - inst.moved_at if inst.turns else 0.0,
        _has_first_steps(inst),
    )  # fmt: skip


def _has_first_steps(inst: Instance) -> bool:
    model = inst.turns[0].model if inst.turns else None
    return model is not None and (model.name not in inst.tried or model.name in inst.cold)


def _model(pool: Pool, model: Model) -> ModelView:
    suspects = sum(seq.model is model for seq in pool.suspects.values())
    return ModelView(
        model.name, model.queued, model.running, model.ended, model.output_tokens, model.on_time,
        model.loads, model.busy_s, model.stall_s, model.switch_s, model.poisoned, suspects, model.worked_at,
        model.answered_at,
    )  # fmt: skip


def _sequence(seq: Sequence, now: float) -> SequenceView:
    swapped = seq.stage is Stage.DECODE and seq.place is Place.HOST
    home = seq.home.id if seq.home is not None else ""
    state = "swapped" if swapped else seq.stage.value
    return SequenceView(seq.id, seq.model.name, home, state, seq.prompt_tokens, seq.output_tokens, now - seq.arrival)
