"""Log probabilities of a batch, in one copy: those of each row by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aegaeon_sidecar.backends.draws import NO_TOKEN
from aegaeon_sidecar.backends.logprobs import with_logprobs
from aegaeon_sidecar.sampling import NotFinite, Picked, Sampled

WANTED = [3, None, 0, 20, 3, None, 5, 1000]


def alone(row: torch.Tensor, token: int, wanted: int | None) -> Picked:
    if wanted is None:
        return Sampled(token)
    logprobs = row.log_softmax(dim=-1)
    values, ids = logprobs.topk(min(wanted, len(row)))
    return Sampled(token, float(logprobs[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))


@pytest.mark.parametrize("vocab", [50, 4099])
def test_rows_of_a_batch_have_the_bits_of_each_row_alone(vocab: int) -> None:
    random = np.random.default_rng(vocab)
    logits = torch.from_numpy(random.normal(scale=4.0, size=(len(WANTED), vocab)).astype(np.float32))
    logits[4:] = logits[4:].round()  # many are equally likely
    tokens = torch.from_numpy(random.integers(0, vocab, size=len(WANTED)))
    rows = zip(logits, tokens.tolist(), WANTED, strict=True)
    assert with_logprobs(logits, tokens, WANTED) == [alone(row, token, wanted) for row, token, wanted in rows]


def test_rows_without_a_token_and_rows_that_are_not_finite_are_distinguished() -> None:
    logits = torch.zeros(4, 9)
    logits[1, 3] = logits[2, 3] = torch.nan
    tokens = torch.tensor([NO_TOKEN, NO_TOKEN, 5, 5])
    first, second, third, last = with_logprobs(logits, tokens, [1, None, 1, 1])
    assert (first, second, third) == (NotFinite(by_request=True), NotFinite(by_request=False), NotFinite())
    assert isinstance(last, Sampled)


class Reads(TorchDispatchMode):
    """Counts single numbers that are read from tensors: each waits for a GPU."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_no_number_is_read_by_itself() -> None:
    with Reads() as reads:
        with_logprobs(torch.zeros(8, 2000), torch.zeros(8, dtype=torch.int64), WANTED)
    assert reads.count == 0
