"""Where models go: to the instance of least KV pressure with room for them, and away from one of much more pressure.

Models in use are never unloaded for others: a model for which no instance has room waits until one has nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon_scheduler.core.book import blocks_for, least_slabs
from aegaeon_scheduler.core.config import PrismSettings
from aegaeon_scheduler.core.domain import Role
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.prism.pressure import Demand, Share, balance, least
from aegaeon_scheduler.core.policies.prism.rates import Rates
from aegaeon_scheduler.core.policies.prism.table import Batch, Table, has_weights
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.shared_weights import slabs_to_load
from aegaeon_scheduler.core.state import Instance, Model, Sequence


class Placing:
    """Chooses instances for prompts, for what decodes elsewhere than it was prefilled, and for what waits."""

    def __init__(self, pool: Pool, settings: PrismSettings, table: Table, rates: Rates) -> None:
        self._pool = pool
        self._settings = settings
        self._table = table
        self._rates = rates
        self._chosen: dict[Model, Instance] = {}  # where a model's prompts go once it is there

    def prompt_place(self, seq: Sequence) -> Instance | None:
        """Where its model is; else where KV pressure is least, of the instances that have room; None: nowhere yet."""
        able = self._able(seq)
        holders = [inst for inst in able if self._has(inst, seq.model)]
        chosen = self._chosen.get(seq.model)
        if chosen is not None and chosen in holders:
            return chosen
        free = holders or [inst for inst in able if self._fits(inst, seq)]
        inst = self._least(free, seq.model)
        if inst is not None and not holders:
            self._chosen[seq.model] = inst
            inst.wanted.setdefault(seq.model.name, "least KV pressure")
        return inst

    def decode_place(self, seq: Sequence) -> Instance | None:
        """Where its model decodes on its node; else where KV pressure is least there."""
        node = seq.home.node if seq.home is not None else None
        of = self._pool.fleet.of(seq.model).open
        able = [i for i in of if i.role is not Role.PREFILL and i.takes(seq) and node in (None, i.node)]
        holders = [inst for inst in able if self._has(inst, seq.model)]
        return self._least(holders or able, seq.model)

    def _able(self, seq: Sequence) -> list[Instance]:
        """Instances that may compute its prompt; without the too small ones where there are others."""
        model = seq.model
        able = [inst for inst in self._pool.fleet.of(model).open if inst.role is not Role.DECODE and inst.takes(seq)]
        if model.footprint is None:
            return able
        tokens = seq.prompt_tokens + seq.prefix_tokens + 1
        return [i for i in able if least_slabs(model.fp, tokens, i.slab_bytes) <= i.slabs] or able

    def _has(self, inst: Instance, model: Model) -> bool:
        """Returns whether an instance has a model's weights, or its requests."""
        return has_weights(inst, model) or model in self._table.engine(inst).batches

    def _fits(self, inst: Instance, seq: Sequence) -> bool:
        """Returns whether there is room beside the models in use. An instance without requests accepts any."""
        engine, model = self._table.engine(inst), seq.model
        if not engine.batches:
            return True
        if model.footprint is None:
            return False
        models = self._pool.models
        ahead = sum(slabs_to_load(inst, models[name]) for name in inst.wanted if name in models)
        free = engine.room() - ahead
        blocks = blocks_for(model.fp, seq.prompt_tokens + seq.prefix_tokens + 1)
        need = slabs_to_load(inst, model) + inst.book.slabs_for(model.fp, blocks)
        return need + self._settings.headroom * inst.slabs <= free

    def _least(self, able: list[Instance], model: Model) -> Instance | None:
        if len(able) < 2:
            return able[0] if able else None
        shares = {inst.id: self._share(inst) for inst in able}
        nbytes = model.footprint.weight_bytes if model.footprint is not None else 0
        best = least(shares, shares, self._rates.growth(model), nbytes)
        if best is None:  # all are full: the one with the fewest models
            return min(able, key=lambda i: len(self._table.engine(i).batches), default=None)
        return self._pool.instances[best]

    def _share(self, inst: Instance) -> Share:
        """Returns what the models in use leave of an instance."""
        share = Share(inst.slabs * inst.slab_bytes)
        for model in self._table.engine(inst).batches:
            share.add(self._rates.growth(model), model.fp.weight_bytes)
        return share

    # -- passes over the pool ---------------------------------------------------------------------------------------

    def place_pending(self, now: float) -> list[Move]:
        """Places waiting sequences that now have room. Who can still be in time comes before who is late, each by
        deadline.
        """
        waiting = [list(sequences.values()) for sequences in self._table.pending.values()]
        waiting.sort(key=lambda sequences: _urgency(sequences, now))
        return [move for sequences in waiting for move in self._place(sequences, now)]

    def _place(self, sequences: list[Sequence], now: float) -> list[Move]:
        moves = []
        for seq in sequences:
            inst = self.prompt_place(seq)
            if inst is None:
                continue
            self._table.join(seq, inst, now).prompts[seq.id] = seq
            moves.append(Move(seq.model, (seq,), inst, "there is room for its model"))
        return moves

    def migrate(self, now: float) -> list[Move]:
        """Algorithm 1 over the models in use: new prompts of one that moves go elsewhere once its weights are there."""
        engines = {i.id: self._table.engine(i) for i in self._pool.instances.values() if i.role is not Role.DECODE}
        memory = {id: e.inst.slabs * e.inst.slab_bytes for id, e in engines.items()}
        demands = {}
        live = self._table.live()
        self._chosen = {model: at for model, at in self._chosen.items() if model in live}
        for model in live:
            batches = [b for b in self._table.batches(model) if b.inst.id in engines]
            if batches:
                demands[model] = self._demand(model, batches)
        places = balance(demands, memory, self._settings.threshold)
        return [move for model, id in places.items() for move in self._move(model, engines[id].inst, now)]

    def _demand(self, model: Model, batches: list[Batch]) -> Demand:
        at = max(batches, key=lambda batch: (batch.inst is self._chosen.get(model), len(batch.members))).inst.id
        open = (i for i in self._pool.fleet.of(model).open if i.role is not Role.DECODE)
        return Demand(self._rates.growth(model), model.fp.weight_bytes, tuple(i.id for i in open), at)

    def _move(self, model: Model, inst: Instance, now: float) -> list[Move]:
        engine = self._table.engine(inst)
        if slabs_to_load(inst, model) + self._settings.headroom * inst.slabs > engine.room(without=model):
            return []
        self._chosen[model] = inst
        engine.idle_since[model] = now
        return [Move(model, (), inst, "less KV pressure here")]

    def forget(self, inst: Instance) -> None:
        """Drops an instance that is gone."""
        self._chosen = {model: at for model, at in self._chosen.items() if at is not inst}


def _urgency(sequences: Iterable[Sequence], now: float) -> tuple[bool, float]:
    dues = [seq.deadline() for seq in sequences]
    ahead = [due for due in dues if due >= now]
    return not ahead, min(ahead or dues)
