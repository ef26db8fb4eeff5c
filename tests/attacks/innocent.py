"""The innocent tenant: chats that stream continuously, each compared with its output without other load.

Half of them are greedy, half draw with a seed. What counts is what a client sees: ids of tokens, how the stream ended,
and the time between two events.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

ADDRESS = "127.0.0.2"  # not the attackers': bounds on connections are of each address
TOKENS = 96  # of each chat
CALM_S = 0.5
STANDS_S = 1.0  # longer than any pause between two chats
TTFT_S, TBT_S = 5.0, 0.2  # objectives of its models (stack.pods)
PATIENCE_S = 60.0  # for one chat: guards against a hang
QUESTIONS = ("What does calendar.isleap do?", "What is fractions.Fraction?", "What does json.dumps do?")


@dataclass(frozen=True, slots=True)
class Chat:
    """One request that is asked again and again."""

    model: str
    question: str
    seed: int | None  # None: greedy

    @property
    def body(self) -> dict[str, Any]:
        drawn = {"temperature": 0} if self.seed is None else {"temperature": 1.0, "top_p": 0.9, "seed": self.seed}
        return {
            **drawn,
            "model": self.model,
            "messages": [{"role": "user", "content": self.question}],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two events of a stream, monotonic seconds."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Ending:
    """A chat that is over. `problem`: why it failed or differs; empty when it is as it should be."""

    begin: float
    end: float
    problem: str


@dataclass
class Record:
    """What all streams have seen."""

    gaps: list[Gap] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    last: dict[int, float] = field(default_factory=dict)  # per stream: its newest token
    late: list[float] = field(default_factory=list)  # when tokens came behind their deadlines

    def gaps_within(self, begin: float, end: float) -> list[float]:
        """Every gap that overlaps the time, seconds, and how long each stream has stalled at its end."""
        closed = [gap.seconds for gap in self.gaps if gap.end >= begin and gap.begin <= end]
        return closed + [end - last for last in self.last.values() if last < end - STANDS_S]

    def problems_within(self, begin: float, end: float) -> list[str]:
        return [ending.problem for ending in self.endings if ending.problem and begin <= ending.end <= end]

    def late_within(self, begin: float, end: float) -> int:
        return sum(begin <= at <= end for at in self.late)

    def completed_within(self, begin: float, end: float) -> int:
        return sum(begin <= ending.end <= end and not ending.problem for ending in self.endings)


def chats(models: Sequence[str]) -> list[Chat]:
    """Two for each model: a greedy and a seeded one."""
    return [
        Chat(model, QUESTIONS[number % len(QUESTIONS)], seed)
        for number, model in enumerate(models)
        for seed in (None, 1000 + number)
    ]


class Innocent:
    """`async with` it: streams from the first moment to the last. `record` grows meanwhile."""

    def __init__(self, url: str, key: str, models: Sequence[str]) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}
        self._chats = chats(models)
        self._references: dict[Chat, list[int]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.record = Record()

    async def __aenter__(self) -> Innocent:
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        connector = aiohttp.TCPConnector(local_addr=(ADDRESS, 0))
        self._session = aiohttp.ClientSession(self._url, headers=self._headers, timeout=timeout, connector=connector)
        try:
            await self._learn()
        except BaseException:
            await self._session.close()
            raise
        self._tasks = [asyncio.create_task(self._stream(number, chat)) for number, chat in enumerate(self._chats)]
        return self

    async def _learn(self) -> None:
        """The output of each chat without other load."""
        await self._served()
        for chat in self._chats:
            self._references[chat] = await self._ask(chat, None)
        again = [await self._ask(chat, None) for chat in self._chats]
        assert again == list(self._references.values()), "the innocent tenant's chats differ without any attack"

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def _served(self) -> None:
        """Until each chat was answered once: tokenizers and weights are loaded then."""
        deadline = time.monotonic() + 2 * PATIENCE_S
        for chat in self._chats:
            while True:
                try:
                    await self._ask(chat, None)
                    break
                except ChatError:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.2)  # another process is watched

    async def all_went_on(self, since: float, timeout_s: float = PATIENCE_S) -> bool:
        """Until every stream has had a token after `since`; False when one did not within the time."""
        deadline = time.monotonic() + timeout_s
        while any(self.record.last.get(number, 0.0) <= since for number in range(len(self._chats))):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)  # another process is watched
        return True

    async def calm(self, timeout_s: float = 30.0) -> None:
        """Until no stream has stalled for a while; earlier load is over then."""
        deadline = time.monotonic() + timeout_s
        while not self._is_calm(time.monotonic()) and time.monotonic() < deadline:
            await asyncio.sleep(CALM_S / 5)  # another process is watched

    def _is_calm(self, now: float) -> bool:
        fresh = all(now - self.record.last.get(number, 0.0) < CALM_S for number in range(len(self._chats)))
        return fresh and max(self.record.gaps_within(now - CALM_S, now), default=CALM_S) < CALM_S

    async def _stream(self, number: int, chat: Chat) -> None:
        while True:
            begin = time.monotonic()
            try:
                got = await self._ask(chat, number)
                problem = "" if got == self._references[chat] else _difference(chat, self._references[chat], got)
            except (aiohttp.ClientError, TimeoutError, ChatError) as error:
                problem = f"{chat.model}: {type(error).__name__}: {error}"[:300]
                await asyncio.sleep(0.2)  # a refused client does not hammer
            self.record.endings.append(Ending(begin, time.monotonic(), problem))

    async def _ask(self, chat: Chat, number: int | None) -> list[int]:
        """The tokens of one chat; gaps go into the record of stream `number`."""
        tokens: list[int] = []
        finish, before, asked = None, None, time.monotonic()
        async with self._session.post("/v1/chat/completions", json=chat.body) as answer:
            if answer.status != 200:
                raise ChatError(f"{answer.status} {(await answer.text())[:200]}")
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise ChatError(event["error"]["message"])
                if not (choice := event["choices"][0]).get("token_ids"):
                    finish = choice["finish_reason"] or finish
                    continue
                now = time.monotonic()
                if number is not None and now > asked + TTFT_S + len(tokens) * TBT_S:
                    self.record.late.append(now)
                tokens += choice["token_ids"]
                finish = choice["finish_reason"] or finish
                if number is not None:
                    self.record.last[number] = now
                    if before is not None:
                        self.record.gaps.append(Gap(before, now))
                before = now
        if finish != "length":
            raise ChatError(f"ended with {finish!r} after {len(tokens)} tokens")
        return tokens


class ChatError(Exception):
    """A chat was refused or broke off."""


def _difference(chat: Chat, wanted: Sequence[int], got: Sequence[int]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), min(len(wanted), len(got)))
    how = "greedy" if chat.seed is None else "seeded"
    return f"{chat.model}, {how}: differs from token {at} on ({Counter(got).most_common(1)[:1]})"
