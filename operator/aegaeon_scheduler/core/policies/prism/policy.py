"""`policy: prism` behind the Policy protocol: a model is on one instance, chosen by KV pressure, until it is idle.

Source: Prism, arXiv 2505.04021: Algorithm 1 (pressure.py), Algorithm 2 (arbitration.py), eviction of idle models. What
the paper leaves open is said in docs/policy-prism.md.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from aegaeon_scheduler.core.config import PrismSettings
from aegaeon_scheduler.core.domain import Role, Stage
from aegaeon_scheduler.core.policies import Move, Proposal
from aegaeon_scheduler.core.policies.prism.placing import Placing
from aegaeon_scheduler.core.policies.prism.rates import Rates
from aegaeon_scheduler.core.policies.prism.table import Batch, Table
from aegaeon_scheduler.core.policies.prism.turns import Turns
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence, Weights


class PrismPolicy:
    """Placement by KV pressure, prompts by Moore and Hodgson, models in turn, idle models evicted by objective."""

    name = "prism"

    def __init__(self, pool: Pool, settings: PrismSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._table = Table()
        self._rates = Rates(settings.window_s)
        self._placing = Placing(pool, settings, self._table, self._rates)
        self._turns = Turns(pool, settings)
        self._migrated_at = -inf
        pool.pass_at = inf

    def instance_down(self, inst: Instance) -> None:
        """See Policy."""
        self._table.engines.pop(inst.id, None)
        self._placing.forget(inst)

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def place(self, seq: Sequence, now: float) -> Instance | None:
        """See Policy."""
        return self._place_prompt(seq, now) if seq.stage is Stage.QUEUED else self._place_decode(seq, now)

    def _place_prompt(self, seq: Sequence, now: float) -> Instance | None:
        """Where its model is, else where KV pressure is least with it; without room it waits for the next pass."""
        if seq.id not in self._table.pending.get(seq.model, ()):
            self._rates.count_prompt(seq.model, seq.prompt_tokens + seq.prefix_tokens, now)
        self._table.leave(seq, now)
        inst = self._placing.prompt_place(seq)
        if inst is None:
            self._table.wait(seq)
        else:
            self._table.join(seq, inst, now).prompts[seq.id] = seq
        self._pool.ask_pass()
        return inst

    def refusal(self, seq: Sequence, now: float) -> str | None:
        """See Policy. What is queued is bounded by time alone."""
        return None

    def _place_decode(self, seq: Sequence, now: float) -> Instance | None:
        """Where it was prefilled; after a prefill instance, where its model decodes or KV pressure is least."""
        home = seq.home
        inst = home if home is not None and home.role is not Role.PREFILL else self._placing.decode_place(seq)
        if inst is not None:
            self._table.join(seq, inst, now)
        return inst

    def forget(self, seq: Sequence) -> None:
        """See Policy."""
        self._table.leave(seq, self._pool.now)
        if self._table.pending:
            self._pool.ask_pass()

    # -- turns ------------------------------------------------------------------------------------------------------

    def propose(self, inst: Instance, now: float, barred: Collection[Proposal]) -> Proposal | None:
        """See Policy and turns.py."""
        return self._turns.propose(self._table.engine(inst), now, barred)

    def outranks(self, inst: Instance, seq: Sequence, turn: Issued, now: float) -> bool:
        """See Policy. No turn is cut short."""
        return False

    def issued(self, inst: Instance, proposal: Proposal, turn: Issued) -> None:
        """See Policy."""
        engine = self._table.engine(inst)
        assert isinstance(proposal.batch, Batch)
        engine.pressed = False
        engine.in_a_row = engine.in_a_row + 1 if proposal.prefill else 0
        for seq in proposal.prefill:
            if not seq.unissued_tokens:
                proposal.batch.prompts.pop(seq.id, None)
        if proposal.decode:
            engine.turn_over(proposal.batch)

    def reshaped(self, model: Model) -> None:
        """See Policy. Nothing of it is kept."""

    def unissued(self, inst: Instance, seq: Sequence) -> None:
        """See Policy. It comes first again."""
        batch = self._table.batch(seq)
        if batch is not None and seq.id not in batch.prompts:
            batch.prompts = {seq.id: seq, **batch.prompts}

    # -- preemption --------------------------------------------------------------------------------------------------

    def unload_order(self, inst: Instance, idle: list[Weights]) -> list[Weights]:
        """Models without requests here, idle for most times their TTFT first. Others only where nothing could run."""
        engine = self._table.engine(inst)
        shares = engine.idle_shares(self._pool.now)
        unused = sorted((w for w in idle if w.model in shares), key=lambda w: (-shares[w.model], w.used))
        if not engine.pressed:
            return unused
        used = [w for w in idle if w.model in engine.batches]
        return unused + sorted(used, key=lambda w: -engine.batches[w.model].due())

    def past_host(self, inst: Instance) -> bool:
        """See Policy. The host cache is inclusive: what was loaded last is in it."""
        return False

    def preemption_order(self, inst: Instance, sequences: list[Sequence], now: float) -> list[Sequence]:
        """Due last first."""
        return sorted(sequences, key=lambda s: (-s.deadline(), -s.order))

    def check(self, now: float) -> list[str]:
        """See Policy."""
        return self._table.check()

    def pool_pass(self, now: float) -> list[Move]:
        """Places waiting sequences; every few seconds moves models to where KV pressure is much less."""
        settings = self._settings
        live = self._table.live()
        self._rates.update(live, now)
        moves = self._placing.place_pending(now)
        if now >= self._migrated_at + settings.interval_s:
            self._migrated_at = now
            moves += self._placing.migrate(now)
        later_s = settings.pass_interval_s if self._table.pending else settings.interval_s
        self._pool.pass_at = now + later_s if live or self._table.pending else inf
        self._pool.pass_from = now + settings.pass_gap_s
        return moves
