"""From the ordered tokens of one choice to what its client sees: text, logprobs, the reason of the end, the bill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_gateway.text.stops import StopScanner
from aegaeon_proto.v1.gateway_pb2 import Token
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_ERROR, FINISH_REASON_LENGTH, FINISH_REASON_STOP

_FINISH = {FINISH_REASON_STOP: "stop", FINISH_REASON_LENGTH: "length"}
UNLIKELY = -9999.0
"""what OpenAI writes for a logprob of minus infinity"""


class PromptDetails(TypedDict):
    """`cached_tokens`: tokens of the prompts whose KV cache was found instead of computed."""

    cached_tokens: int


class Usage(TypedDict):
    """OpenAI's usage object, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


@dataclass(slots=True)
class TokenLogprob:
    """One token's logprob, that of the likeliest tokens, and where its text begins in the choice's text."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    start: int


@dataclass(slots=True)
class Delta:
    """What one choice has that is new. `index` is the choice's in the HTTP answer; `finish` on the last one."""

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None


class Output:
    """What the client of one choice sees. Feed it tokens in order, take deltas.

    A stop string ends the choice at once: what comes later is neither shown nor counted. Logprobs are shown with the
    text that they belong to, so those of a cut stop string are not shown either.
    """

    __slots__ = ("_decoded", "_delta", "_detokenizer", "_logprobs", "_scanner", "_shown", "finish", "tokens")

    def __init__(self, index: int, vocabulary: Vocabulary, stops: Sequence[str]) -> None:
        self._detokenizer = vocabulary.detokenizer()
        self._scanner = StopScanner(stops)
        self._delta = Delta(index)
        self._logprobs: list[TokenLogprob] = []
        self._decoded = 0  # characters that the tokens so far have made
        self._shown = 0  # characters that the client sees of them
        self.finish: str | None = None
        self.tokens = 0
        """output tokens that are billed"""

    @property
    def stopped_here(self) -> bool:
        """A stop string ended the choice; the engine does not know yet."""
        return self._scanner.matched is not None

    def feed(self, token: Token) -> None:
        """Take the next token. After the end, and for the engine's error marker, nothing happens."""
        if self.finish is not None or token.finish == FINISH_REASON_ERROR:
            return
        self.tokens += 1
        self._delta.tokens.append(token.token)
        if token.finish == FINISH_REASON_STOP:  # its last token is the stop id, which makes no text
            text = self._detokenizer.flush()
        else:
            if token.HasField("logprob"):
                self._logprobs.append(self._logprob(token))
            text = self._detokenizer.feed(token.token)
            if token.finish:
                text += self._detokenizer.flush()
        self._show(text)
        if token.finish and not self.stopped_here:
            self._end(_FINISH[token.finish])

    def take(self) -> Delta | None:
        """What is new since the last call, or None."""
        delta = self._delta
        if not (delta.text or delta.finish or delta.tokens):
            return None
        self._delta = Delta(delta.index)
        return delta

    def _logprob(self, token: Token) -> TokenLogprob:
        top = tuple((likely.token, _finite(likely.logprob)) for likely in token.top)
        return TokenLogprob(token.token, _finite(token.logprob), top, self._decoded)

    def _show(self, text: str) -> None:
        self._decoded += len(text)
        self._add(self._scanner.feed(text))
        if self.stopped_here:
            self.finish = self._delta.finish = "stop"
            self._logprobs.clear()

    def _add(self, text: str) -> None:
        self._delta.text += text
        self._shown += len(text)
        while self._logprobs and self._logprobs[0].start < self._shown:
            self._delta.logprobs.append(self._logprobs.pop(0))

    def _end(self, reason: str) -> None:
        self._add(self._scanner.flush())
        self._delta.logprobs += self._logprobs
        self._logprobs = []
        self.finish = self._delta.finish = reason


def _finite(logprob: float) -> float:
    return max(logprob, UNLIKELY)
