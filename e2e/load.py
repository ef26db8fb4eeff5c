"""People who chat with models of a cluster while something happens to it: all of it held against transformers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from aegaeon_cli.demo.check import Check, check
from aegaeon_cli.demo.traffic import Chat, Exchange, Traffic
from aegaeon_cli.models import questions

MAX_TOKENS = 60


class Load:
    """In a `with`: `people` at each model ask one question after the other; at its end they finish what they began.

    `keys`: the API key for each model. `host`: the host name that a route asks for. `failures` are what ended in an
    error, as sentences.
    """

    def __init__(self, url: str, keys: Mapping[str, str], models: Path, people: int = 2, host: str = "") -> None:
        self._models, self._keys, self._people = models, keys, people
        headers = {"Host": host} if host else None
        self._traffic = {model: Traffic(url, key, headers) for model, key in keys.items()}
        self._enough = threading.Event()
        self._answered = threading.Condition()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")

    @property
    def exchanges(self) -> list[Exchange]:
        return [exchange for traffic in self._traffic.values() for exchange in traffic.exchanges]

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
        self._thread.join()

    def wait_for_answers(self, more: int, within_s: float = 60.0) -> None:
        """Until so many more chats have ended well, or AssertionError."""
        target = self._well() + more
        with self._answered:
            arrived = self._answered.wait_for(lambda: self._well() >= target, within_s)
        assert arrived, f"{self._well()} of {target} answers after {within_s:g} s; failures: {self.failures[:3]}"

    def verdict(self) -> Check:
        """Every answer that ended well against transformers."""
        well = [one for one in self.exchanges if not one.error]
        found = check(well, {model: self._models / model for model in self._keys})
        if found.differences:
            print(*well, sep="\n")  # all that is known of what must not happen
        return found

    def _well(self) -> int:
        return sum(bool(one.finish_reason) for one in self.exchanges)

    async def _run(self) -> None:
        known = questions(self._models)
        async with asyncio.TaskGroup() as group:
            for model, traffic in self._traffic.items():
                for person in range(self._people):
                    group.create_task(self._hold(model, traffic, known[model], person))
        for traffic in self._traffic.values():
            await traffic.close()

    async def _hold(self, model: str, traffic: Traffic, known: Sequence[str], person: int) -> None:
        for number in count(person * 7):
            if self._enough.is_set():
                return
            exchange = await traffic.ask(Chat(model, known[number % len(known)], max_tokens=MAX_TOKENS))
            if exchange.error:
                await asyncio.sleep(0.2)  # a person who is refused does not ask again at once
            with self._answered:
                self._answered.notify_all()
