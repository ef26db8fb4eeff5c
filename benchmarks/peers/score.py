"""What a run was worth: tokens on time, times to first tokens, throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.peers.client import Answer
from benchmarks.peers.trace import TOKENS

TTFT_S, TBT_S = 2.0, 0.1


@dataclass(frozen=True, slots=True)
class Score:
    """`ttft_*_s` None: more than that share of the requests got no token before the run was over."""

    on_time: float
    """of all tokens that were asked for: token k at most TTFT_S + k * TBT_S after its request"""
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tokens_per_s: float
    answered: int
    failed: int
    """errors"""
    unfinished: int
    """neither answered nor failed when the run was over"""

    def as_json(self) -> dict[str, float | int | None]:
        return asdict(self)


def score(answers: Sequence[Answer], seconds: float) -> Score:
    """`seconds`: how long the run took. Servers send several tokens in a piece, and hold some back: a token counts as
    sent with the piece in which it ends, tokens being of one length in an answer."""
    times = [token_times(answer) for answer in answers]
    on_time = sum(at <= TTFT_S + k * TBT_S for one in times for k, at in enumerate(one))
    first = sorted(one[0] if one else float("inf") for one in times)
    answered = sum(answer.ended for answer in answers)
    failed = sum(bool(answer.error) and answer.error != "never asked for" for answer in answers)
    return Score(
        on_time / (TOKENS * len(answers)),
        _quantile(first, 0.5),
        _quantile(first, 0.99),
        sum(map(len, times)) / seconds,
        answered,
        failed,
        len(answers) - answered - failed,
    )


def token_times(answer: Answer) -> list[float]:
    """Of each token that came. An answer that did not end has as many as its text would have of a whole one's."""
    if not answer.pieces:
        return []
    whole = len(answer.text) if answer.ended else max(len(answer.text), 3 * TOKENS)
    times: list[float] = []
    seen = 0
    for at_s, text in answer.pieces:
        seen += len(text)
        times += [at_s] * (max(1, TOKENS * seen // whole) - len(times))
    return times


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    found = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
    return None if found == float("inf") else found
