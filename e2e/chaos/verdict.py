"""Every answer of a campaign held against transformers, and every failure against what faults killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from aegaeon_cli.demo.check import Check, check
from aegaeon_cli.demo.traffic import Exchange
from e2e.chaos.gateways import Gateways

Compare = Callable[[Sequence[Exchange], Mapping[str, Path]], Check]


@contextmanager
def in_a_process() -> Iterator[Compare]:
    """Comparisons beside the load: in its process each operation of torch waits for the interpreter's lock."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield lambda exchanges, models: process.submit(check, exchanges, models).result()


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that ended in an error. `harmed`: its gateway was killed or cut off meanwhile."""

    exchange: Exchange
    url: str
    harmed: bool

    @property
    def sentence(self) -> str:
        one = self.exchange
        got = f"after {len(one.tokens)} tokens and {one.ended - one.sent:.1f} s"
        return f"{one.chat.model}, {one.request or 'no id'} at {self.url}, {got}: {one.error}"


@dataclass(slots=True)
class _Change:
    """A time in which answers of `model` may be those of another one. Monotonic seconds."""

    model: str
    other: str
    since: float
    until: float = float("inf")


@dataclass
class Verdict:
    """Of all requests that are over. `wrong`: sentences about answers that differ, or lack tokens."""

    models: Path
    compare: Compare = check
    requests: int = 0
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    _changes: list[_Change] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)

    def may_be(self, model: str, other: str, since: float) -> _Change:
        """From now on, until the caller says `until`, the model is on its way to be another one, or back."""
        self._changes.append(_Change(model, other, since))
        return self._changes[-1]

    def look(self, exchanges: Iterable[tuple[str, Exchange]], gateways: Gateways) -> list[str]:
        """Take in what has ended since the last look; returns what should not have been, as sentences."""
        bad: list[str] = []
        for url, one in exchanges:
            if one.ended and id(one) not in self._seen:  # exchanges live as long as the load does
                self._seen.add(id(one))
                self.requests += 1
                self.tokens += len(one.tokens)
                bad += self._failed(url, one, gateways) if one.error else self._answered(one)
        return bad

    def failed_since(self, since: float) -> tuple[int, int]:
        """Failures that ended after `since` (monotonic): those without an excuse, and those of harmed gateways."""
        harmed = [failure.harmed for failure in self.failures if failure.exchange.ended >= since]
        return len(harmed) - sum(harmed), sum(harmed)

    def _failed(self, url: str, one: Exchange, gateways: Gateways) -> list[str]:
        failure = Failure(one, url, gateways.harmed(url, one.sent, one.ended))
        self.failures.append(failure)
        return [] if failure.harmed else [failure.sentence]

    def _answered(self, one: Exchange) -> list[str]:
        answers = [one.chat.model, *(c.other for c in self._changes if _concerns(c, one))]
        differences = [self._difference(one, name) for name in dict.fromkeys(answers)]
        if not all(differences):
            return []
        self.wrong.append(f"{differences[0]}; {one}")
        return self.wrong[-1:]

    def _difference(self, one: Exchange, model: str) -> str:
        """Empty when the answer is that model's. The same one comes again and again."""
        key = (model, one.chat, tuple(one.tokens), one.text, one.finish_reason)
        if key not in self._known:
            self._known[key] = _lack(one) or self._wrong(one, self.models / model)
        return self._known[key]

    def _wrong(self, exchange: Exchange, model: Path) -> str:
        return next(iter(self.compare([exchange], {exchange.chat.model: model}).differences), "")


def _lack(one: Exchange) -> str:
    """Whatever there is may be right, and not all: an answer that ended by its length has that length."""
    if one.finish_reason == "length" and len(one.tokens) != one.chat.max_tokens:
        return f"{one.chat.model}: {len(one.tokens)} tokens of {one.chat.max_tokens}"
    return ""


def _concerns(change: _Change, one: Exchange) -> bool:
    return change.model == one.chat.model and one.sent <= change.until and change.since <= one.ended
