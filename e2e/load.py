"""People who chat with models of a cluster while something happens to it: all of it held against transformers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count, cycle, pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

from aegaeon_cli.demo.check import Check, check
from aegaeon_cli.demo.traffic import Chat, Exchange, Traffic
from aegaeon_cli.models import questions

MAX_TOKENS = 60
_PROBE_TOKENS = 4


class Load:
    """In a `with`: `people` at each model ask one question after the other; at its end they finish what they began.

    `url`: of all requests, or what says it anew for each one (a gateway pod, for example). `keys`: the API key for each
    model. `host`: the host name that a route asks for. `patience_s`: a request that is not over by then has failed.
    `probe_s`: beside the people one model after the other is asked for a few tokens every so often, however many such
    requests are open: people who wait for an answer do not notice that new requests are answered again.
    `failures` are what ended in an error, as sentences.
    """

    def __init__(
        self,
        url: str | Callable[[], str],
        keys: Mapping[str, str],
        models: Path,
        people: int = 2,
        host: str = "",
        patience_s: float | None = None,
        probe_s: float | None = None,
    ) -> None:
        self._models, self._keys, self._people = models, keys, people
        self._url: Callable[[], str] = url if callable(url) else lambda: url
        self._headers = {"Host": host} if host else None
        self._patience_s, self._probe_s = patience_s, probe_s
        self._traffic: dict[tuple[str, str], Traffic] = {}
        self._enough = threading.Event()
        self._answered = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._serve, name="load")

    @property
    def by_url(self) -> list[tuple[str, Exchange]]:
        """All exchanges, with the address that each was sent to."""
        sent = list(self._traffic.items())
        return [(url, exchange) for (_, url), traffic in sent for exchange in list(traffic.exchanges)]

    @property
    def exchanges(self) -> list[Exchange]:
        return [exchange for _, exchange in self.by_url]

    @property
    def failures(self) -> list[str]:
        return [f"{one.chat.model}, {one.request or 'no id'}: {one.error}" for one in self.exchanges if one.error]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enough.set()
        if self._task and kind and not issubclass(kind, Exception):  # Ctrl-C does not wait
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def wait_for_answers(self, more: int, within_s: float = 60.0) -> None:
        """Until so many more chats have ended well, or AssertionError."""
        target = self._well() + more
        with self._answered:
            arrived = self._answered.wait_for(lambda: self._well() >= target, within_s)
        assert arrived, f"{self._well()} of {target} answers after {within_s:g} s; failures: {self.failures[:3]}"

    def longest_wait(self, since: float) -> float:
        """The longest time, in seconds, for which a person waited for a first or next token that came after `since`
        (monotonic)."""
        longest = 0.0
        for exchange in self.exchanges:
            arrivals = [exchange.sent, *(exchange.sent + at for at in exchange.times)]
            waits = (end - begin for begin, end in pairwise(arrivals) if end > since)
            longest = max(longest, *waits, 0.0)
        return longest

    def verdict(self) -> Check:
        """Every answer that ended well against transformers."""
        well = [one for one in self.exchanges if not one.error]
        found = check(well, {model: self._models / model for model in self._keys})
        if found.differences:
            print(*well, sep="\n")  # all that is known of what must not happen
        return found

    def check(self) -> None:
        """Every request must have been answered, and every answer be that of transformers."""
        assert self.failures == []
        assert self.verdict().differences == ()

    def _well(self) -> int:
        return sum(bool(one.finish_reason) for one in self.exchanges)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.run(self._run())

    async def _run(self) -> None:
        known = questions(self._models)
        self._task = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as group:
                for model in self._keys:
                    for person in range(self._people):
                        group.create_task(self._hold(model, known[model], person))
                if self._probe_s is not None:
                    group.create_task(self._probe(group, known, self._probe_s))
        finally:
            for traffic in self._traffic.values():
                await traffic.close()

    async def _hold(self, model: str, known: Sequence[str], person: int) -> None:
        for number in count(person * 7):
            if self._enough.is_set():
                return
            exchange = await self._ask(Chat(model, known[number % len(known)], max_tokens=MAX_TOKENS))
            if exchange.error:
                await asyncio.sleep(0.2)  # a person who is refused does not ask again at once

    async def _probe(self, group: asyncio.TaskGroup, known: Mapping[str, Sequence[str]], every_s: float) -> None:
        for model in cycle(self._keys):
            if self._enough.is_set():
                return
            group.create_task(self._ask(Chat(model, known[model][0], max_tokens=_PROBE_TOKENS)))
            await asyncio.sleep(every_s)

    async def _ask(self, chat: Chat) -> Exchange:
        exchange = await self._at(chat.model, self._url()).ask(chat)
        with self._answered:
            self._answered.notify_all()
        return exchange

    def _at(self, model: str, url: str) -> Traffic:
        if (model, url) not in self._traffic:
            self._traffic[model, url] = Traffic(url, self._keys[model], self._headers, self._patience_s)
        return self._traffic[model, url]
