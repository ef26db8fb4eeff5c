"""Everything that clients do to the API, at random from a seed: right and wrong requests, patience and impatience."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

VISIT_S = 60.0
PATIENCE_S = 0.2  # mean, of clients that leave
LONGEST_PROMPT = 600  # tokens
VOCABULARY = 2000
CONTEXT = 2048  # of the quickstart's models, in tokens
WORDS = ("the", "a", "function", "list", "returns", "value", "of", "string", "is", "error", "object", "file", "number")
STOPS = ("the", "e", "\n", ". ", "ing", " a")


@dataclass(frozen=True, slots=True)
class Visit:
    """One HTTP request, the status that it must get, and after how many seconds its client goes (None: it stays)."""

    path: str
    body: bytes
    status: int = 200
    leave_s: float | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a visit ended. `wrong` says what should not have been; empty when all was as it must be."""

    visit: Visit
    left: bool = False
    tokens: int = 0
    wrong: str = ""


class Visits:
    """Draws visits. One in eight is refused; one client in four leaves at a random moment, answered or not."""

    def __init__(self, models: Sequence[str], seed: int) -> None:
        self._random = random.Random(seed)
        self._models = sorted(models)

    def draw(self) -> Visit:
        if self._random.random() < 0.125:
            return self._refused()
        leave_s = self._random.expovariate(1 / PATIENCE_S) if self._random.random() < 0.25 else None
        path, body = self._asked()
        return Visit(path, json.dumps(body).encode(), leave_s=leave_s)

    def _asked(self) -> tuple[str, dict[str, Any]]:
        body = {"model": self._random.choice(self._models), **self._length(), **self._sampling()}
        body["n"] = self._random.choice((1, 1, 1, 2, 3))
        body["stream"] = self._random.random() < 0.8
        if self._random.random() < 0.3:
            body["stop"] = self._random.sample(STOPS, self._random.randint(1, 3))
        if self._random.random() < 0.5:
            return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": self._text(60)}]}
        return "/v1/completions", {**body, "prompt": self._prompt()}

    def _length(self) -> dict[str, Any]:
        most = self._random.choice((1, 8, 60, 200))
        return {"max_tokens": self._random.randint(1, most), "ignore_eos": self._random.random() < 0.5}

    def _sampling(self) -> dict[str, Any]:
        if self._random.random() < 0.4:
            return {"temperature": 0}
        sampling: dict[str, Any] = {"temperature": self._random.choice((0.5, 1.0, 1.5))}
        extras: dict[str, Any] = {
            "seed": self._random.randrange(2**31),
            "top_p": self._random.choice((0.8, 0.95)),
            "top_k": self._random.choice((1, 20, 200)),
            "min_p": 0.05,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.1,
            "logit_bias": {str(self._random.randrange(VOCABULARY)): 5},
        }
        return sampling | {name: extras[name] for name in self._random.sample(sorted(extras), 3)}

    def _prompt(self) -> str | list[int]:
        if self._random.random() < 0.5:
            return self._text(100)
        count = self._random.choice((1, 17, self._random.randint(1, LONGEST_PROMPT)))
        return [self._random.randrange(6, VOCABULARY) for _ in range(count)]

    def _text(self, most: int) -> str:
        return " ".join(self._random.choices(WORDS, k=self._random.randint(1, most)))

    def _refused(self) -> Visit:
        """Wrong in one of the ways that a client can be wrong."""
        good = {"model": self._random.choice(self._models), "prompt": "x", "max_tokens": 4}
        wrong: list[tuple[int, dict[str, Any] | bytes]] = [
            (404, {**good, "model": "none-such"}),
            (400, {**good, "prompt": [7] * CONTEXT}),
            (400, {**good, "temperature": 3}),
            (400, {**good, "max_tokens": "four"}),
            (400, {**good, "n": 0}),
            (400, {**good, "tools": [{"type": "function"}]}),
            (400, {**good, "temprature": 1}),
            (400, b'{"model": "llama", "prompt": '),
        ]
        status, body = self._random.choice(wrong)
        return Visit("/v1/completions", body if isinstance(body, bytes) else json.dumps(body).encode(), status)


class Visitor:
    """Makes visits over HTTP; leaving is closing the connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        timeout, connector = aiohttp.ClientTimeout(total=VISIT_S), aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def make(self, visit: Visit) -> Ending:
        """From the request to the end of the answer, or until the client leaves."""
        try:
            async with asyncio.timeout(visit.leave_s) as patience:
                return await self._whole(visit)
        except TimeoutError:
            return Ending(visit, left=patience.expired(), wrong="" if patience.expired() else "no end of the answer")
        except aiohttp.ClientError as error:
            return Ending(visit, wrong=f"{type(error).__name__}: {error}")

    async def _whole(self, visit: Visit) -> Ending:
        json_headers = {"Content-Type": "application/json"}
        async with self._session.post(self._url + visit.path, data=visit.body, headers=json_headers) as response:
            text = await response.read()
            if response.status != visit.status:
                return Ending(visit, wrong=f"HTTP {response.status} instead of {visit.status}: {text[:300]!r}")
        if visit.status != 200:
            return Ending(visit, wrong="" if b'"error"' in text else f"a refusal without an error object: {text!r}")
        return _judged(visit, text)


def _judged(visit: Visit, text: bytes) -> Ending:
    """Every choice has ended, once, for a reason."""
    body = json.loads(visit.body)
    answers = _events(text) if body["stream"] else [json.loads(text)]
    if broken := [answer["error"] for answer in answers if "error" in answer]:
        return Ending(visit, wrong=f"an error in the stream: {broken[0]}")
    if body["stream"] and not text.rstrip().endswith(b"data: [DONE]"):
        return Ending(visit, wrong="the stream ended without [DONE]")
    reasons: dict[int, list[str]] = {}
    for choice in (choice for answer in answers for choice in answer["choices"]):
        reasons.setdefault(choice["index"], []).extend([choice["finish_reason"]] if choice["finish_reason"] else [])
    if sorted(reasons) != list(range(body["n"])) or any(len(found) != 1 for found in reasons.values()):
        return Ending(visit, wrong=f"{body['n']} choices asked for, finish reasons {reasons}")
    return Ending(visit, tokens=sum(len(answer["choices"]) for answer in answers))


def _events(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith(b"data: {")]


async def crowd(visitor: Visitor, draw: Callable[[], Visit], count: int, width: int) -> list[Ending]:
    """`count` visits, `width` at a time."""
    left = iter(range(count))

    async def one_after_the_other() -> list[Ending]:
        return [await visitor.make(draw()) for _ in left]

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one_after_the_other()) for _ in range(width)]
    return [ending for task in tasks for ending in task.result()]
