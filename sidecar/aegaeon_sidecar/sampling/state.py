"""The state that one sequence carries from token to token so that its sampling survives any move.

Nothing here is random: a draw is a hash of (seed, choice, index), penalties are counts of tokens, a constraint is
followed from the first token on. So a state rebuilt elsewhere from prompt and output goes on where the old one stopped.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from aegaeon_proto.engine.sampling import SamplingParams
from aegaeon_sidecar.sampling.guide import Guide
from aegaeon_sidecar.sampling.reasoning import Reasoning

_FIRST_CAPACITY = 64


def uniform(seed: int, choice: int, index: int) -> float:
    """A number in [0, 1) for output token `index` of a choice: a function of the three alone, on every machine."""
    key = struct.pack("<QQQ", seed & (2**64 - 1), choice, index)
    digest = blake2b(key, digest_size=8, person=b"aegaeon-draw").digest()
    return float((int.from_bytes(digest, "little") >> 12) * 2.0**-52)


class SamplerState:
    """The sampling parameters of one sequence and the tokens that its penalties count.

    The holder calls `accept` once for every token that it keeps; a backend only reads.
    """

    __slots__ = (
        *("_counts", "_ids", "_never_plain", "_penalised", "_places", "_reasoning", "_recent", "_used"),
        *("allowed", "bias", "choice", "generated", "guide", "params", "stop_ids"),
    )

    def __init__(
        self,
        params: SamplingParams | None = None,
        *,
        choice: int = 0,
        prompt: Iterable[int] = (),
        output: Iterable[int] = (),
        guide: Guide | None = None,
    ) -> None:
        self.params = params = params or SamplingParams()
        self.choice = choice
        self.guide = guide
        self.bias = _columns(params.logit_bias)
        self.stop_ids = np.array(sorted(set(params.stop_ids)), dtype=np.int64)
        self.allowed = np.array(sorted(set(params.allowed_ids)), dtype=np.int64)
        longest = max((len(run.tokens) for run in params.bad_words), default=1)
        self._recent: deque[int] = deque(maxlen=longest - 1)
        budget = params.reasoning
        self._reasoning = None if budget is None or not budget.closing.tokens else Reasoning(budget)
        self._penalised = self.penalised
        self._never_plain = not self.greedy or params.logprobs is not None or self._always_reshaped or guide is not None
        self.generated = 0
        self._reset_counts()
        if params.repetition_penalty != 1.0:
            for token in prompt:
                self._place(token)
        for token in output:
            self.accept(token)

    @property
    def greedy(self) -> bool:
        """The likeliest token is taken; no draw is made."""
        return self.params.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Some penalty depends on the tokens so far."""
        params = self.params
        return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0 or params.repetition_penalty != 1.0

    @property
    def stops_masked(self) -> bool:
        """The next token may not be a stop id; where there is a constraint, its mask says so."""
        return self.guide is None and self.generated < self.params.min_tokens and self.stop_ids.size > 0

    @property
    def plain(self) -> bool:
        """The next token is the argmax of the raw logits and nothing else is asked for."""
        return not (self._never_plain or self.stops_masked)

    @property
    def reshaped(self) -> bool:
        """The logits change before a choice is made (penalties, bias, masked tokens)."""
        return self._always_reshaped or self.stops_masked

    @property
    def _always_reshaped(self) -> bool:
        masked = self.allowed.size > 0 or bool(self.params.bad_words or self._reasoning)
        return self.penalised or self.bias[0].size > 0 or masked

    def completes_bad_word(self) -> NDArray[np.int64]:
        """Tokens that would be the last one of a run that the output may not have."""
        recent = tuple(self._recent)
        runs = (run.tokens for run in self.params.bad_words)
        ends = (run[-1] for run in runs if run[:-1] == recent[len(recent) - len(run) + 1 :])
        return np.array(sorted(set(ends)), dtype=np.int64)

    def accept(self, token: int) -> None:
        """The sequence keeps this token as its next output."""
        self.generated += 1
        self._recent.append(token)
        if self._reasoning is not None:
            self._reasoning.accept(token)
        if self.guide is not None:
            self.guide.accept(token)
        if self._penalised:
            place = self._place(token)  # first: it may put larger arrays in place
            self._counts[place] += 1.0

    @property
    def forced(self) -> int | None:
        """The next token, whatever the logits are."""
        return None if self._reasoning is None else self._reasoning.forced

    def draw(self) -> float:
        """The number in [0, 1) that the next output token is chosen with."""
        return uniform(self.params.seed, self.choice, self.generated)

    def seen(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Distinct tokens under penalty and how often each was output (0: only in the prompt). Views: do not keep."""
        return self._ids[: self._used], self._counts[: self._used]

    def _reset_counts(self) -> None:
        self._places: dict[int, int] = {}
        self._ids: NDArray[np.int64] = np.empty(_FIRST_CAPACITY, dtype=np.int64)
        self._counts: NDArray[np.float32] = np.zeros(_FIRST_CAPACITY, dtype=np.float32)
        self._used = 0

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is not None:
            return place
        place = self._used
        if place == self._ids.size:
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._places[token] = place
        self._used += 1
        return place


def _columns(bias: Mapping[int, float]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    ids = sorted(bias)
    return np.array(ids, dtype=np.int64), np.array([bias[i] for i in ids], dtype=np.float32)
