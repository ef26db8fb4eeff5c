"""Blocks found by what they hold: names, eviction by worth, and books that never notice what is cached."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aegaeon_native import OutOfSlabs, SlabPool
from aegaeon_sidecar.memory.prefix import name_block, seed_of
from aegaeon_sidecar.memory.tiers import Owned, Tier

SLAB = 8192
SHAPES = {"small": 2048, "odd": 3000, "large": 11000}


def tier(slabs: int = 8) -> Tier:
    clock = iter(range(1 << 30))
    made = Tier("test", SlabPool.private("prefix", SLAB, slabs), lambda: float(next(clock)))
    for name, size in SHAPES.items():
        made.add_shape(name, size)
    return made


def names(tokens: str, seed: bytes = b"model") -> list[bytes]:
    made: list[bytes] = []
    for token in tokens:
        made.append(name_block(made[-1] if made else seed, [ord(token)]))
    return made


def keep(made: Tier, shape: str, tokens: str, block_s: float = 1.0) -> list[int]:
    """A sequence with a block for each letter ran and ended."""
    blocks = made.allocate(shape, len(tokens), 99)
    made.index(shape).publish(names(tokens), blocks.tolist())
    made.release(shape, blocks, len(tokens), block_s)
    return blocks.tolist()


def test_equal_block_hashes_need_the_same_model_and_prefix() -> None:
    assert names("abc") == names("abcd")[:3]
    assert not set(names("abc")) & set(names("xbc"))
    assert not set(names("abc")) & set(names("abc", seed=b"other"))
    assert seed_of("00ff", b"{}") == seed_of("00ff", b"{}") != seed_of("00ff", b"{ }")
    assert seed_of("", b"{}") != seed_of("", b"{}")


def test_unreferenced_cached_blocks_are_reused_and_count_as_free() -> None:
    made = tier()
    blocks = keep(made, "small", "abcde")
    assert (made.slabs_free, made.pool.free) == (8, 6)
    found = made.index("small").find(names("abcx"))
    assert found == dict(enumerate(blocks[:3]))
    shared, new = made.share("small", found, 5, 2)
    assert shared[:3].tolist() == blocks[:3]
    assert new.tolist() == [3, 4]
    assert made.slabs_free == 6
    made.check(0, {"small": Owned(shared.tolist(), shared[3:].tolist())})


def test_sharing_takes_no_more_slabs_than_were_granted() -> None:
    made = tier()
    blocks = keep(made, "large", "abc")
    with pytest.raises(OutOfSlabs):
        made.share("large", dict(enumerate(blocks)), 3, 1)
    made.check(0, {})


def test_granted_slabs_are_taken_from_cached_blocks() -> None:
    made = tier()
    keep(made, "small", "abcdefghijklmnop")
    keep(made, "odd", "qrst")
    slabs = made.take(8)
    assert sorted(slabs) == list(range(8))
    assert [made.blocks(shape).cached().size for shape in ("small", "odd")] == [0, 0]
    made.check(8, {})


def test_the_end_of_a_chain_is_evicted_first_and_expensive_blocks_stay() -> None:
    made = tier(slabs=4)
    cheap = keep(made, "small", "abcd", block_s=0.001)
    dear = keep(made, "small", "wxyz", block_s=1.0)
    held = made.allocate("small", 8, 2)
    assert made.blocks("small").cached().size == 8
    made.allocate("small", 2, 2)
    index = made.index("small")
    assert [index.name_of(block) is None for block in cheap] == [True] * 4  # a whole slab: it held nothing else
    assert all(index.name_of(block) for block in dear)
    assert held.size == 8


def test_within_a_chain_the_last_blocks_are_evicted_first() -> None:
    made = tier(slabs=2)
    made.take(1)
    blocks = keep(made, "small", "abc")
    held = made.allocate("small", 1, 1)
    made.allocate("small", 2, 0)
    index = made.index("small")
    assert [index.name_of(block) is not None for block in blocks] == [True, False, False]
    assert held.size == 1


class Tiers(RuleBasedStateMachine):
    """Sequences of letters come, share, write their last block and go; a plain count says what must be free."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = tier()
        self.held: list[tuple[str, str, list[int]]] = []
        self.content: dict[tuple[str, int], str] = {}
        self.weights: list[int] = []

    @rule(shape=st.sampled_from(sorted(SHAPES)), tokens=st.text("ab", min_size=1, max_size=6), grant=st.integers(0, 4))
    def come(self, shape: str, tokens: str, grant: int) -> None:
        index, before = self.tier.index(shape), self.tier.slabs_free
        chain = names(tokens[:-1])
        found = {}
        for i, block in index.find(chain).items():
            if i == len(found):
                found[i] = block
        for i, block in found.items():
            assert self.content[shape, block] == tokens[: i + 1]
        try:
            blocks, new = self.tier.share(shape, found, len(tokens), grant)
        except OutOfSlabs:
            return
        assert before - self.tier.slabs_free <= grant
        writable = {block for s, _, mine in self.held for block in mine if s == shape}
        assert not writable & set(blocks[new].tolist())
        for i in new.tolist():
            self.content[shape, int(blocks[i])] = tokens[: i + 1]
        index.publish(chain, blocks[:-1].tolist())
        self.held.append((shape, tokens, blocks.tolist()))

    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        if self.held:
            shape, tokens, blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.tier.release(shape, np.array(blocks, dtype=np.int32), len(tokens) - 1, 1.0)

    @rule(count=st.integers(1, 8))
    def load(self, count: int) -> None:
        if count > self.tier.slabs_free:
            with pytest.raises(OutOfSlabs):
                self.tier.take(count)
            return
        self.weights += self.tier.take(count)

    @rule()
    def unload(self) -> None:
        self.tier.pool.give(self.weights)
        self.weights = []

    @invariant()
    def everything_is_conserved(self) -> None:
        owned: dict[str, Owned] = {}
        for shape, _, blocks in self.held:
            mine = owned.setdefault(shape, Owned())
            mine.blocks += blocks
            mine.writable.append(blocks[-1])
        self.tier.check(len(self.weights), owned)
        for shape, mine in owned.items():
            assert max(Counter(mine.writable).values()) == 1, shape


TestTiers = Tiers.TestCase
TestTiers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
