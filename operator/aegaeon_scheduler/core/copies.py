"""Sends the KV copies of one sequence, in and out, and reserves memory for each."""

from __future__ import annotations

from aegaeon_scheduler.core.book import blocks_for
from aegaeon_scheduler.core.commands import Adopt, SwapIn, SwapOut
from aegaeon_scheduler.core.domain import CommandId
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Sequence


class Copies:
    """Issues copies; that there is room was found out before."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def bring_in(
        self, inst: Instance, seq: Sequence, reason: str, after: tuple[CommandId, ...] = (), tight: bool = False
    ) -> None:
        """Copy a sequence's KV to the device, from this host tier or from where it was prefilled."""
        fp, book = seq.model.fp, inst.book
        blocks = blocks_for(fp, seq.kv_tokens)
        slabs = book.slabs_for(fp, blocks, tight)
        body: SwapIn | Adopt
        if seq.source is not None:
            assert seq.handle_of is not None
            body = Adopt(seq.id, seq.epoch, seq.source.id, seq.handle_of, slabs)
        else:
            body = SwapIn(seq.id, seq.epoch, slabs)
        issued = self._pool.issue(inst, body, reason, after, model=seq.model, seq=seq)
        book.grant_kv(issued, fp, blocks, tight)
        seq.copy = issued.id
        seq.project(seq.kv_tokens)

    def swap_out(self, inst: Instance, seq: Sequence, reason: str, after: tuple[CommandId, ...] = ()) -> None:
        """Copy a sequence's KV to the host tier; its device blocks are free when that is done."""
        issued = self._pool.issue(inst, SwapOut(seq.id, seq.epoch), reason, after, model=seq.model, seq=seq)
        inst.book.grant_host(issued, seq.model.fp, blocks_for(seq.model.fp, max(seq.kv_tokens, seq.projected_kv)))
        seq.copy = issued.id
        seq.copying_out = True
        inst.count += 1
