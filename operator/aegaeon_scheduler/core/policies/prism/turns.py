"""Chooses what an instance runs next: prompts in the order of Moore and Hodgson, between them decode turns, model after
model.

So models share an instance's time as engines do that run side by side on one GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from aegaeon_scheduler.core.book import blocks_for
from aegaeon_scheduler.core.config import PrismSettings
from aegaeon_scheduler.core.domain import Place, Stage
from aegaeon_scheduler.core.policies import Proposal
from aegaeon_scheduler.core.policies.prism.arbitration import Job, moore_hodgson
from aegaeon_scheduler.core.policies.prism.table import Batch, Engine
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Sequence


class Turns:
    """Proposes turns. What has to come first it asks for in `Instance.wanted` and `incoming`."""

    def __init__(self, pool: Pool, settings: PrismSettings) -> None:
        self._pool = pool
        self._settings = settings

    def propose(self, engine: Engine, now: float, barred: Collection[Proposal]) -> Proposal | None:
        """See Policy."""
        prompts = {id(proposal.batch) for proposal in barred if proposal.prefill}
        batches = {id(proposal.batch) for proposal in barred if proposal.decode}
        self._ask(engine)
        ways = [lambda: self._prompt(engine, now, prompts), lambda: self._decode(engine, batches)]
        if engine.in_a_row >= self._settings.prompts_in_a_row:
            ways.reverse()
        proposal = ways[0]() or ways[1]()
        return proposal or self._forced(engine, prompts, batches)

    def _ask(self, engine: Engine) -> None:
        """For weights of batches that have none, and for KV that is on the host tier, oldest batch first."""
        inst = engine.inst
        for batch in engine.batches.values():
            if batch.model.name not in inst.weights and not engine.pressed:
                inst.wanted.setdefault(batch.model.name, "its requests are here")
        if not inst.incoming:
            ready = (batch for batch in engine.batches.values() if batch.ready())
            away = (seq for batch in ready for seq in batch.members.values() if seq.away)
            inst.incoming.extend(sorted(away, key=Sequence.deadline))

    # -- prompts ----------------------------------------------------------------------------------------------------

    def _prompt(self, engine: Engine, now: float, barred: Collection[int]) -> Proposal | None:
        """The first that has room, of those that can be in time, else of the others."""
        batches = [b for b in engine.batches.values() if b.prompts and b.ready() and id(b) not in barred]
        jobs = [self._job(batch, seq) for batch in batches for seq in self._heads(batch)]
        if not jobs:
            return None
        kept, dropped = moore_hodgson(jobs, now)
        room = engine.room()
        for job in (*kept, *dropped):
            batch, seq = job.what
            if self._need(batch, seq) <= (engine.inst.book.free() if seq.turns else room):
                why = f"{len(kept)} of {len(jobs)} prompts can be in time"
                return Proposal(batch.model, (seq,), [], 0, why, batch, self._part(seq))
        return None

    def _heads(self, batch: Batch) -> Iterator[Sequence]:
        """Sequences of a batch that are looked at: first come first served, as many as matter."""
        ready = (seq for seq in batch.prompts.values() if seq.copy is None and not seq.away)
        return islice(ready, self._settings.prompts_seen)

    def _job(self, batch: Batch, seq: Sequence) -> Job[tuple[Batch, Sequence]]:
        estimate = self._pool.estimates.of(batch.model.name, batch.inst.device)
        return Job((batch, seq), seq.deadline(), estimate.part_s(seq.projected_kv, seq.unissued_tokens))

    def _part(self, seq: Sequence) -> int:
        """Tokens of a prompt to compute next; 0: all that is left."""
        return self._settings.part_tokens if seq.unissued_tokens > self._settings.part_tokens else 0

    def _need(self, batch: Batch, seq: Sequence) -> int:
        """Slabs that the prompt's next part takes. The first one takes the room of all."""
        fp, done = batch.model.fp, seq.projected_kv
        tokens = (done and self._part(seq)) or seq.unissued_tokens
        return batch.inst.book.slabs_for(fp, blocks_for(fp, done + tokens) - blocks_for(fp, done))

    # -- decode -----------------------------------------------------------------------------------------------------

    def _decode(self, engine: Engine, barred: Collection[int]) -> Proposal | None:
        """Some steps of the model whose turn it is."""
        for batch in engine.batches.values():
            if id(batch) in barred or not batch.ready():
                continue
            ready = [seq for seq in batch.members.values() if _decodes(seq)]
            if len(ready) > engine.inst.max_batch:
                ready.sort(key=Sequence.deadline)
            if ready:
                reason = f"{len(ready)} sequences, {len(engine.batches)} models share the engine"
                return Proposal(batch.model, (), ready, self._settings.quantum_steps, reason, batch)
        return None

    def _forced(self, engine: Engine, prompts: Collection[int], batches: Collection[int]) -> Proposal | None:
        """Nothing can run as it is, and no load is under way: who is due first takes what it needs."""
        inst = engine.inst
        if inst.turns or inst.book.loads or (inst.wanted and inst.commands):
            return None
        order = sorted(engine.batches.values(), key=Batch.due)
        proposals = (self._force(b, id(b) not in prompts, id(b) not in batches) for b in order)
        proposal = next((proposal for proposal in proposals if proposal is not None), None)
        if proposal is not None:
            inst.wanted.clear()
            engine.pressed = True
        return proposal

    def _force(self, batch: Batch, prompts: bool, decode: bool) -> Proposal | None:
        reason = "nothing else can run here"
        prompt = next((seq for seq in batch.prompts.values() if seq.copy is None), None)
        if prompt is not None and prompts:
            tokens = min(prompt.unissued_tokens, self._pool.config.prefill_chunk_tokens)
            return Proposal(batch.model, (prompt,), [], 0, reason, batch, tokens)
        stages = (Stage.DECODE, Stage.HANDOFF)
        ready = [seq for seq in batch.members.values() if seq.copy is None and seq.stage in stages]
        if not ready or not decode:
            return None
        steps = self._settings.quantum_steps
        return Proposal(batch.model, (), sorted(ready, key=Sequence.deadline), steps, reason, batch)


def _decodes(seq: Sequence) -> bool:
    return seq.copy is None and seq.place is Place.DEVICE and seq.stage is Stage.DECODE
