"""Random greedy and seeded requests against a running stack, and their responses.

Plain HTTP instead of the `openai` client: it costs a tenth of the time, which the engines on the same cores need.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from aegaeon_cli.demo.verify import chat_ids

REQUEST_S = 120.0


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to ask for. `leave_after` tokens the client disconnects (None: it stays)."""

    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    leave_after: int | None = None
    sampling: tuple[tuple[str, float], ...] = (("temperature", 0.0),)
    ignore_eos: bool = False

    def body(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "stream": True,
            "return_token_ids": True,
            "ignore_eos": self.ignore_eos,
            **dict(self.sampling),
        }


@dataclass(slots=True)
class Output:
    """The response."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    error: str = ""


class Deck:
    """Random requests from a seed: known questions and plain noise, 1 to 250 tokens, some past their natural end."""

    def __init__(self, models: dict[str, Path], known: dict[str, list[str]], seed: int) -> None:
        self._random = random.Random(seed)
        self._models = models
        self._known = known
        self._prompts: dict[tuple[str, str], tuple[int, ...]] = {}

    def draw(self) -> Request:
        """A greedy request; one in eight clients leaves early."""
        model = self._random.choice(sorted(self._models))
        most = self._random.choice((1, 8, 100, 250))
        leave = self._random.randrange(1, 20) if self._random.random() < 0.125 else None
        long = self._random.random() < 0.5
        return Request(model, self._prompt(model), self._random.randint(1, most), leave, ignore_eos=long)

    def draw_seeded(self) -> Request:
        """A sampled request that stays to its end."""
        sampling = {
            "temperature": self._random.choice((0.5, 1.0, 1.5)),
            "top_p": self._random.choice((0.8, 0.95, 1.0)),
            "top_k": self._random.choice((0, 20, 200)),
            "seed": self._random.randrange(2**31),
        }
        request = self.draw()
        return replace(request, leave_after=None, max_tokens=60, sampling=tuple(sampling.items()))

    def _prompt(self, model: str) -> tuple[int, ...]:
        if self._random.random() < 0.25:
            return tuple(self._random.randrange(6, 2000) for _ in range(self._random.randint(1, 300)))
        question = self._random.choice(self._known[model])
        if (model, question) not in self._prompts:
            self._prompts[model, question] = tuple(chat_ids(self._models[model], question))
        return self._prompts[model, question]


class Client:
    """Asks over plain HTTP and reads server-sent events; leaving is closing the connection."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/completions"
        timeout, connector = aiohttp.ClientTimeout(total=REQUEST_S), aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def ask(self, request: Request) -> Output:
        output = Output(request)
        try:
            async with self._session.post(self._url, json=request.body()) as response:
                if response.status != 200:
                    output.error = f"HTTP {response.status}: {await response.text()}"
                    return output
                await self._read(response, output)
        except (aiohttp.ClientError, TimeoutError) as error:
            output.error = f"{type(error).__name__}: {error}"
        return output

    @staticmethod
    async def _read(response: aiohttp.ClientResponse, output: Output) -> None:
        leave = output.request.leave_after
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                output.error = str(event["error"])
                return
            for choice in event["choices"]:
                output.tokens += choice.get("token_ids") or ()
                output.finish_reason = choice["finish_reason"] or output.finish_reason
            if leave is not None and len(output.tokens) >= leave:
                response.close()
                return
        if output.finish_reason is None:
            output.error = output.error or "the stream ended without a finish reason"


class Load:
    """Keeps `width` requests open until stopped; remembers every output."""

    def __init__(self, client: Client, deck: Deck, width: int) -> None:
        self._client, self._deck, self._width = client, deck, width
        self._ended = asyncio.Event()
        self.outputs: list[Output] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Traffic during the block; requests that are open at its end are waited for."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._width):
                group.create_task(self._keep_asking())
            try:
                yield
            finally:
                self._ended.set()

    async def _keep_asking(self) -> None:
        while not self._ended.is_set():
            output = await self._client.ask(self._deck.draw())
            self.outputs.append(output)
            if output.error:
                print(f"failed: {output.request.model}: {output.error}", file=sys.stderr)
                await asyncio.sleep(0.1)
