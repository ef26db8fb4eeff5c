"""Log probabilities of the raw distribution, of a whole batch in one copy to the host.

Every copy from a GPU is waited for, so all numbers of a step travel as one tensor of float64, in which float32 and ids
are exact.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from aegaeon_proto.engine.tokens import Said
from aegaeon_sidecar.backends.draws import NO_TOKEN
from aegaeon_sidecar.sampling import NotFinite, Picked, Sampled

Rows = list[list[float]]
Top = tuple[tuple[int, float], ...]


def with_logprobs(logits: Tensor, tokens: Tensor, top_counts: Seq[int | None]) -> list[Picked]:
    """Rows as chosen. `logits` float32 [rows, vocab_size]: those of the model, unchanged; `tokens` int64 [rows],
    NO_TOKEN where there is none; `top_counts`: the number of likeliest tokens to report for each row, None: no log
    probabilities.

    A row that is not finite is NotFinite, even if a mask hid that from the choice and log probabilities were requested.
    """
    counts = sorted({most for most in top_counts if most is not None})
    groups = [[i for i, most in enumerate(top_counts) if most == count] for count in counts]
    tables = [_table(logits[members], tokens[members], count) for members, count in zip(groups, counts, strict=True)]
    chosen, *read = _on_host([tokens[:, None], *tables])
    values = {i: row for members, rows in zip(groups, read, strict=True) for i, row in zip(members, rows, strict=True)}
    return [_picked(logits[i], int(token), values.get(i)) for i, (token,) in enumerate(chosen)]


def score(logits: Tensor, tokens: Seq[int], likeliest: int) -> tuple[Said, ...]:
    """The logprob of each row's token and of the likeliest tokens, from float32 [len(tokens), vocab_size]."""
    if not len(tokens):
        return ()
    logprobs = logits.log_softmax(dim=-1)
    of_token = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    ranks = (logprobs > of_token).sum(dim=-1, keepdim=True) + 1
    top = _top(logprobs, likeliest)
    (rows,) = _on_host([torch.cat((of_token.double(), ranks.double(), top), dim=1)])
    return tuple(
        Said(token, logprob, int(rank), _read_top(row))
        for token, (logprob, rank, *row) in zip(tokens, rows, strict=True)
    )


def _table(logits: Tensor, tokens: Tensor, count: int) -> Tensor:
    """float64 [rows, 2 + 2 * count]: whether a row is finite, its token's log probability, then as `_top`."""
    logprobs = logits.log_softmax(dim=-1)
    finite = logits.amax(dim=-1, keepdim=True).isfinite()
    of_token = logprobs.gather(1, tokens.clamp(min=0)[:, None])
    return torch.cat((finite.double(), of_token.double(), _top(logprobs, count)), dim=1)


def _top(logprobs: Tensor, count: int) -> Tensor:
    """float64 [rows, 2 * count]: the likeliest ids, then their log probabilities."""
    values, ids = logprobs.topk(min(count, logprobs.shape[1]), dim=-1)
    return torch.cat((ids.double(), values.double()), dim=1)


def _read_top(row: list[float]) -> Top:
    half = len(row) // 2
    return tuple(zip(map(int, row[:half]), row[half:], strict=True))


def _on_host(tables: Seq[Tensor]) -> list[Rows]:
    """The rows of each, in one copy."""
    if len(tables) == 1:
        rows: Rows = tables[0].tolist()
        return [rows]
    flat = torch.cat([table.double().flatten() for table in tables]).cpu()
    parts = torch.split(flat, [table.numel() for table in tables])
    return [part.view(table.shape).tolist() for part, table in zip(parts, tables, strict=True)]


def _picked(row: Tensor, token: int, values: list[float] | None) -> Picked:
    if token == NO_TOKEN:
        return NotFinite(by_request=bool(row.amax().isfinite()))
    if values is None:
        return Sampled(token)
    finite, of_token, *top = values
    return Sampled(token, of_token, _read_top(top)) if finite else NotFinite()
