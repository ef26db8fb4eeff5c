"""The tokens of requests, as far as two of them begin alike: names in place of token ids.

A prompt of a session begins with its prompt and answer before, as far as it is that long: text that is changed behind
the prompt (an answer without its reasoning) is new text. A prompt shorter than the one before begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from aegaeon_scheduler.core.prefix import step_tokens
from aegaeon_simulator.workload.model import Arrival


class Span(NamedTuple):
    """Blocks from `first` on, to `end` at most, of the text with this number: equal numbers are equal tokens from the
    prompt's first on."""

    text: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Content:
    """Numbers of texts, each with the token from which on the prompt and its answer are that text."""

    texts: tuple[tuple[int, int], ...]

    def spans(self, block_tokens: int, blocks: int) -> Iterator[Span]:
        """The texts of the first `blocks` blocks. A block with tokens of two texts is of the second."""
        ends = [begin // block_tokens for _, begin in self.texts[1:]]
        firsts = [0, *ends]
        for (text, _), first, end in zip(self.texts, firsts, [*ends, blocks], strict=True):
            if first < min(end, blocks):
                yield Span(text, first, min(end, blocks))

    def chain(self, prompt_tokens: int) -> tuple[int, ...]:
        """Its hashes as a scheduler makes them of a prompt's tokens (core.prefix)."""
        step = step_tokens(prompt_tokens)
        ends = range(step, prompt_tokens + 1, step)
        return tuple(span.text << 32 | span.end for end in ends for span in list(self.spans(1, end))[-1:])


@dataclass(frozen=True, slots=True)
class _Latest:
    content: Content
    prompt: int
    length: int


def contents(arrivals: Iterable[Arrival]) -> list[Content]:
    """The content of each of these requests, which are in order of time."""
    texts: dict[object, int] = {}
    latest: dict[tuple[str, str, int], _Latest] = {}

    def number(name: object) -> int:
        return texts.setdefault(name, len(texts))

    made: list[Content] = []
    for index, arrival in enumerate(arrivals):
        of = arrival.session, arrival.tenant, arrival.model
        before = latest.get(of) if arrival.session else None
        if before is None or arrival.input_tokens < before.prompt:
            begin = min(arrival.shared_tokens, arrival.input_tokens)
            shared = ((number((arrival.model, arrival.tenant)), 0),) if begin else ()
            content = Content((*shared, (number(index), begin)))
        elif arrival.input_tokens >= before.length:
            content = before.content
        else:
            kept = tuple(text for text in before.content.texts if text[1] < before.prompt)
            content = Content((*kept, (number(index), before.prompt)))
        made.append(content)
        if arrival.session:
            length = arrival.input_tokens + arrival.output_tokens
            latest[of] = _Latest(content, arrival.input_tokens, length)
    return made


def shares_text(arrivals: Iterable[Arrival]) -> bool:
    """Returns whether any two requests may begin alike."""
    return any(arrival.session or arrival.shared_tokens for arrival in arrivals)


def least_tokens(requests: Iterable[tuple[Content, int, int]], block_tokens: int) -> int:
    """Tokens of prompts that one cache without limits, which all engines share, leaves to compute.

    `requests`: content, tokens of prompt and of answer, in order of time. Full blocks are reused, all but the last
    token; the KV of the last token of an answer is not computed.
    """
    cached: dict[int, int] = {}
    least = 0
    for content, prompt, answer in requests:
        reused = 0
        for span in content.spans(block_tokens, (prompt - 1) // block_tokens):
            reused = max(reused, min(cached.get(span.text, span.first), span.end))
            if reused < span.end:
                break
        least += prompt - reused * block_tokens
        for span in content.spans(block_tokens, (prompt + answer - 1) // block_tokens):
            cached[span.text] = max(cached.get(span.text, 0), span.end)
    return least
