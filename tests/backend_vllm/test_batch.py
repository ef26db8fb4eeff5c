"""A batch that moves on by one token is the same as one that is made anew."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.vllm import open_backend

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM, in an environment of its own: make test-vllm"),
]
BLOCK_TOKENS = 32


@pytest.fixture(scope="module")
def batches() -> Any:
    open_backend(device="cpu", ranks=1, dtype="float32")
    from aegaeon_sidecar.backends.vllm.batch import Batch

    return Batch


def decodes(positions: list[int], tables: list[Any]) -> list[StepInput]:
    return [StepInput([7 * at % 90], at, blocks, None) for at, blocks in zip(positions, tables, strict=True)]


def tables(rows: int, start: int = 0) -> list[Any]:
    return [np.arange(start + 9 * row, start + 9 * row + 9, dtype=np.int32) for row in range(rows)]


def content(batch: Any) -> list[list[Any]]:
    metadata = batch.metadata
    found = (batch.tokens, batch.positions, batch.slots, batch.starts, batch.ends, metadata.seq_lens)
    tables = [
        row[: -(-end // BLOCK_TOKENS)].tolist() for row, end in zip(batch.table, batch.ends.tolist(), strict=True)
    ]
    sizes = [metadata.num_reqs, metadata.num_actual_tokens, metadata.max_query_len]
    return [*(tensor.tolist() for tensor in found), tables, sizes]


def tables_at(positions: list[int], own: list[Any], elsewhere: bool) -> list[Any]:
    """As an engine's: the same ones, but where a block begins that is not in them, or `elsewhere`, after a swap."""
    whole = tables(len(positions), start=100 if elsewhere else 0)
    rows = zip(positions, own, whole, strict=True)
    replaced = ((at, mine, all_of, elsewhere or len(mine) * BLOCK_TOKENS <= at) for at, mine, all_of in rows)
    return [all_of[: at // BLOCK_TOKENS + 1 + at % 2] if new else mine for at, mine, all_of, new in replaced]


@given(
    begins=st.lists(st.integers(0, 200), min_size=1, max_size=9),
    steps=st.integers(1, 80),
    swapped=st.integers(0, 80),
)
def test_a_batch_that_moves_on_equals_one_that_is_made_anew(
    batches: Any, begins: list[int], steps: int, swapped: int
) -> None:
    own = [table[: at // BLOCK_TOKENS + 1] for at, table in zip(begins, tables(len(begins)), strict=True)]
    batch = batches.of(decodes(begins, own), BLOCK_TOKENS)
    for step in range(1, steps):
        positions = [begin + step for begin in begins]
        own = tables_at(positions, own, elsewhere=step >= swapped and step % 5 == swapped % 5)
        inputs = decodes(positions, own)
        fits = max(positions) // BLOCK_TOKENS < batch.table.shape[1]
        assert batch.advance(inputs) is fits
        anew = batches.of(inputs, BLOCK_TOKENS)
        if not fits:
            batch = anew
        assert content(batch) == content(anew)


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(lambda own: decodes([41, 51], own)[:1], id="a sequence has left"),
        pytest.param(lambda own: decodes([41, 64], own), id="a token was left out, of a block further"),
        pytest.param(lambda own: decodes([40, 50], own), id="the same step again"),
        pytest.param(lambda own: decodes([41, 52], own), id="a token was left out"),
        pytest.param(lambda own: [StepInput([1, 2], 41, own[0], None), *decodes([51], own[1:])], id="a prompt"),
    ],
)
def test_a_batch_of_other_sequences_is_made_anew(batches: Any, others: Any) -> None:
    own = tables(2)
    batch = batches.of(decodes([40, 50], own), BLOCK_TOKENS)
    before = content(batch)
    assert not batch.advance(others(own))
    assert content(batch) == before


def test_a_step_of_prompts_does_not_move_on(batches: Any) -> None:
    own = tables(1)
    batch = batches.of([StepInput([1, 2, 3], 0, own[0], None)], BLOCK_TOKENS)
    assert not batch.advance(decodes([3], own))
