"""From the ordered tokens of one choice to what its client sees: text, logprobs, the reason of the end, the bill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from aegaeon_gateway.dialects.call_stream import Tools
from aegaeon_gateway.dialects.families import Dialect
from aegaeon_gateway.dialects.pieces import Call, Pieces, joined
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_gateway.text.stops import StopScanner
from aegaeon_gateway.workers.wire import Options
from aegaeon_proto.v1.gateway_pb2 import PromptLogprob, Token
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_ERROR, FINISH_REASON_LENGTH, FINISH_REASON_STOP

_FINISH = {FINISH_REASON_STOP: "stop", FINISH_REASON_LENGTH: "length"}
UNLIKELY = -9999.0
"""what OpenAI writes for a logprob of minus infinity"""


class PromptDetails(TypedDict):
    """`cached_tokens`: tokens of the prompts whose KV cache was found instead of computed."""

    cached_tokens: int


class OutputDetails(TypedDict):
    """`reasoning_tokens`: of the output, what was thought and not said."""

    reasoning_tokens: int


class Usage(TypedDict):
    """OpenAI's usage object, in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: OutputDetails


@dataclass(slots=True)
class TokenLogprob:
    """One token's logprob (None: of a prompt's first), those of the likeliest tokens, where its text begins."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    start: int


@dataclass(slots=True)
class Delta:
    """The new part of one choice. `index` is the choice's in the HTTP answer; `finish` on the last one.

    `stop_reason`: the stop string or stop token of the client that ended it; `prompt`: logprobs of the prompt's tokens
    from the second on, on the first delta; `total`: output tokens of the choice so far; `calls`: the first may go on
    with the one before; `calls_before`: those that have begun before these; `pooled`: float32, little-endian, where no
    text was wanted.
    """

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    reasoning: str = ""
    calls: Sequence[Call] = ()
    calls_before: int = 0
    stop_reason: str | int | None = None
    prompt: list[PromptLogprob] | None = None
    total: int = 0
    pooled: bytes = b""


class Output:
    """One choice as its client sees it. Feed it tokens in order, take deltas.

    A stop string ends the choice at once: what comes later is neither shown nor counted. Logprobs are shown with the
    text that they belong to, so those of a cut stop string are not shown either.
    """

    __slots__ = (
        *(
            "_calls",
            "_decode",
            "_decoded",
            "_delta",
            "_flush",
            "_hides_call",
            "_logprobs",
            "_options",
            "_plain",
            "_reader",
            "_scanner",
        ),
        *("_shown", "finish", "reasoning_tokens", "tokens"),
    )

    def __init__(self, index: int, vocabulary: Vocabulary, options: Options) -> None:
        self._options = options
        dialect = Dialect(options.calls, options.reasoning)
        tools = Tools(frozenset(options.tools), frozenset(options.barred_tools), live=options.stream)
        self._reader = dialect.reader(tools, inside=options.inside_reasoning)
        detokenizer = vocabulary.detokenizer(skip_special=options.skip_special_tokens, marks=dialect.marks)
        self._decode, self._flush = detokenizer.feed, detokenizer.flush
        self._plain = self._reader is None and not options.stops and options.logprob_count is None
        self._scanner = StopScanner(options.stops, shown=options.include_stop)
        self._delta = Delta(index)
        self._logprobs: list[TokenLogprob] = []
        self._decoded = 0  # characters that the tokens so far have made
        self._shown = 0  # characters of them that are no stop string
        self._calls = 0
        self._hides_call = False  # the call that is read is not shown
        self.finish: str | None = None
        self.tokens = 0
        """output tokens that are billed"""
        self.reasoning_tokens = 0
        """those of them that are within reasoning"""

    @property
    def stopped_here(self) -> bool:
        """A stop string ended the choice; the engine does not know yet."""
        return self._scanner.matched is not None

    def feed(self, token: Token) -> None:
        """Take the next token. After the end, and for the engine's error marker, nothing happens."""
        if self.finish is not None or token.finish == FINISH_REASON_ERROR:
            return
        options, delta = self._options, self._delta
        if options.prompt_logprobs and token.index == 0:
            delta.prompt = list(token.prompt)
        if options.silent:
            delta.pooled = token.pooled
            self._end("stop" if token.pooled else "length")
            return
        self.tokens += 1
        delta.tokens.append(token.token)
        if self._plain and not token.finish:
            delta.text += self._decode(token.token)
            return
        self._show(self._text_of(token))
        self.reasoning_tokens += self._reader is not None and self._reader.reasoning
        if token.finish and not self.stopped_here:
            if token.finish == FINISH_REASON_STOP and token.token in self._options.stop_token_ids:
                self._delta.stop_reason = token.token
            self._end(_FINISH[token.finish])

    def take(self) -> Delta | None:
        """Take the new part since the last call, or None."""
        delta = self._delta
        if not (delta.text or delta.finish or delta.tokens):
            return None
        delta.total = self.tokens
        self._delta = fresh = Delta(delta.index)
        fresh.calls_before = self._calls
        return delta

    def _text_of(self, token: Token) -> str:
        """The text of a token; that of a stop id, which ends the text, only where it is requested."""
        stop = token.finish == FINISH_REASON_STOP
        if token.HasField("logprob") and (not stop or self._options.include_stop or self._options.echo):
            self._logprobs.append(self._logprob(token))
        text = "" if stop and not self._options.include_stop else self._decode(token.token)
        return text + self._flush() if token.finish else text

    def _logprob(self, token: Token) -> TokenLogprob:
        top = tuple((likely.token, _finite(likely.logprob)) for likely in token.top)
        return TokenLogprob(token.token, _finite(token.logprob), top, self._decoded)

    def _show(self, text: str) -> None:
        self._decoded += len(text)
        self._add(self._scanner.feed(text, checked=self.tokens > self._options.min_tokens))
        if self.stopped_here:
            self._logprobs.clear()
            self._delta.stop_reason = self._scanner.matched
            self._finish("stop")

    def _add(self, text: str) -> None:
        if self._reader is None:
            self._delta.text += text
        else:
            self._take(self._reader.feed(text))
        self._shown += len(text)
        while self._logprobs and self._logprobs[0].start < self._shown:
            self._delta.logprobs.append(self._logprobs.pop(0))

    def _end(self, reason: str) -> None:
        self._add(self._scanner.flush())
        self._delta.logprobs += self._logprobs
        self._logprobs = []
        self._finish(reason)

    def _finish(self, reason: str) -> None:
        if self._reader is not None:
            self._take(self._reader.flush())
        self.finish = self._delta.finish = "tool_calls" if self._calls and reason == "stop" else reason

    def _take(self, pieces: Pieces) -> None:
        """Add the reader's pieces to the delta."""
        options, delta = self._options, self._delta
        delta.text += pieces.content
        if options.show_reasoning:
            delta.reasoning += pieces.reasoning
        if pieces.calls:
            delta.calls = joined((*delta.calls, *self._of_shown(pieces.calls)))

    def _of_shown(self, parts: Iterable[Call]) -> Iterator[Call]:
        """Without parallel calls there is one at most."""
        for part in parts:
            if part.name:
                self._hides_call = self._calls > 0 and not self._options.parallel_calls
                self._calls += not self._hides_call
            if not self._hides_call:
                yield part


def _finite(logprob: float) -> float:
    return max(logprob, UNLIKELY)
