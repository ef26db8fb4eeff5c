"""Slabs freed with their content kept, against a model: a reclaimed slab was not taken meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aegaeon_native import OutOfSlabs, SlabPool

SLABS = 24


class KeptSlabs(RuleBasedStateMachine):
    """`written` is the last writer of a slab; taking slabs writes into them, as a load or KV does."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlabPool.private("kept", 4096, SLABS)
        self.taken: dict[int, list[int]] = {}
        self.kept: dict[int, tuple[int, list[int]]] = {}  # by ticket: whose they were
        self.written = dict.fromkeys(range(SLABS), 0)
        self.last = 0

    def kept_content(self) -> int:
        return sum(len(self.left(ticket)) for ticket in self.kept)

    def left(self, ticket: int) -> list[int]:
        """The first ones up to the first that others have written into."""
        owner, slabs = self.kept[ticket]
        held = {slab for taken in self.taken.values() for slab in taken}
        whole = [slab for slab in slabs if self.written[slab] == owner and slab not in held]
        assert whole == slabs[: len(whole)], "what remains is a beginning"
        return whole

    @rule(count=st.integers(0, SLABS + 2))
    def take(self, count: int) -> None:
        if count > self.pool.free:
            with pytest.raises(OutOfSlabs):
                self.pool.take(count)
            return
        empty = self.pool.free - self.pool.kept
        content = self.kept_content()
        slabs = self.pool.take(count)
        self.last += 1
        self.taken[self.last] = slabs
        for slab in slabs:
            self.written[slab] = self.last
        assert self.kept_content() == content - max(0, count - empty), "slabs without content go first"

    @rule(data=st.data(), keep=st.booleans())
    def give_back(self, data: st.DataObject, keep: bool) -> None:
        if not self.taken:
            return
        owner = data.draw(st.sampled_from(sorted(self.taken)))
        slabs = self.taken.pop(owner)
        if not keep:
            self.pool.give(slabs)
        elif slabs:
            self.kept[self.pool.keep(slabs)] = (owner, slabs)
        else:
            assert self.pool.keep(slabs) == 0

    @rule(data=st.data())
    def reclaim(self, data: st.DataObject) -> None:
        if not self.kept:
            return
        ticket = data.draw(st.sampled_from(sorted(self.kept)))
        left = self.left(ticket)
        assert self.pool.reclaim(ticket) == left
        assert self.pool.reclaim(ticket) == []
        owner, _ = self.kept.pop(ticket)
        if left:
            self.taken[owner] = left

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.check()
        assert self.pool.free == SLABS - sum(map(len, self.taken.values()))
        assert self.pool.kept == self.kept_content()

    def teardown(self) -> None:
        self.pool.close()


TestKeptSlabs = KeptSlabs.TestCase
TestKeptSlabs.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
