"""A client as a stranger has it: HTTP requests, raw sockets, a server of its own. It counts what it is answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection as Campaign
from typing import Any, TypeVar

import aiohttp
from attacks.target import Target

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
READY = "ready"
ANSWER_S = 20.0  # a stranger waits no longer

T = TypeVar("T")
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Stranger:
    """Attacks until `going` is False. `pace`: seconds between two requests, the bound of its rate.

    `answers` counts responses by status; `harm` holds the harm to others that an attack itself observed.
    """

    def __init__(self, campaign: Campaign, target: Target, seconds: float, pace: float) -> None:
        self._campaign = campaign
        self.target = target
        self.answers: Counter[str] = Counter()
        self.harm: list[str] = []
        self._pace = pace
        self._seconds = seconds
        self._until = 0.0

    async def __aenter__(self) -> Stranger:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._http = aiohttp.ClientSession(self.target.url, timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ready(self) -> None:
        """What is sent is made: say so, and wait for the word to begin. Every attack calls it once."""
        self._campaign.send(READY)
        await asyncio.to_thread(self._campaign.recv)
        self._until = time.monotonic() + self._seconds

    @property
    def left_s(self) -> float:
        return self._until - time.monotonic()

    @property
    def going(self) -> bool:
        return self.left_s > 0

    def cycle(self, items: Iterable[T]) -> Iterator[T]:
        """These over and over, until the attack's end."""
        return itertools.takewhile(lambda _: self.going, itertools.cycle(items))

    async def pause(self, factor: float = 1.0) -> None:
        """Between two requests; ends with the attack."""
        await asyncio.sleep(max(min(self._pace * factor, self.left_s), 0))

    async def hold(self) -> None:
        """To the attack's end."""
        await asyncio.sleep(max(self.left_s, 0))

    async def post(
        self, body: Any, path: str = CHAT, *, key: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body; status 0: no answer. `key` "": without one. A body that is bytes goes as it is."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        said = {"Content-Type": "application/json", **(headers or {})}
        if key != "":
            said["Authorization"] = f"Bearer {key or self.target.key}"
        try:
            async with self._http.post(path, data=_parts(data), headers=said) as answer:
                got = answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.answers[type(error).__name__] += 1
            return 0, b""
        self.answers[_label(*got)] += 1
        return got

    async def get(self, path: str, headers: dict[str, str] | None = None) -> int:
        try:
            async with self._http.get(path, headers=headers) as answer:
                await answer.read()
                self.answers[str(answer.status)] += 1
                return answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.answers[type(error).__name__] += 1
            return 0

    async def leave_after_first_token(self, body: dict[str, Any]) -> None:
        """Ask for a stream and drop the connection as soon as something came."""
        said = {"Authorization": f"Bearer {self.target.key}"}
        try:
            async with self._http.post(CHAT, json={**body, "stream": True}, headers=said) as answer:
                await answer.content.readany()
                self.answers[f"{answer.status} and left"] += 1
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.answers[type(error).__name__] += 1

    @asynccontextmanager
    async def connection(self, port: int | None = None, address: str = "") -> AsyncIterator[Connection | None]:
        """A raw connection, to the gateway if not said otherwise; None when it is refused. `address`: of this side."""
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port or self.target.gateway, local_addr=(address, 0) if address else None
                )
        except (OSError, TimeoutError):
            self.answers["refused"] += 1
            yield None
            return
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def raw(self, *pieces: bytes, port: int | None = None, wait_s: float = 3.0) -> bytes:
        """Send these bytes on a connection of its own; what is answered until it is closed or the wait is over."""
        got = b""
        async with self.connection(port) as link:
            if link is None:
                return b""
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(wait_s):
                    for piece in pieces:
                        link[1].write(piece)
                        await link[1].drain()
                    while len(got) < 1 << 16 and (more := await link[0].read(1 << 14)):
                        got += more
        self.answers[_status_line(got)] += 1
        return got

    async def many(self, count: int, one: Callable[[int], Awaitable[None]]) -> None:
        """`count` of them side by side."""
        await asyncio.gather(*(one(number) for number in range(count)))


def chat(model: str, **changes: Any) -> dict[str, Any]:
    """An ordinary short chat."""
    return {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, **changes}


def request_head(path: str, length: int | None, key: str, *more: str) -> bytes:
    """Request line and headers as bytes; `length` None: no Content-Length."""
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Authorization: Bearer {key}",
    ]
    lines += [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([*lines, *more, "", ""]).encode()


async def _parts(data: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), 1 << 18):
        yield data[begin : begin + (1 << 18)]


def _label(status: int, body: bytes) -> str:
    try:
        return f"{status} {json.loads(body)['error']['code']}"
    except (ValueError, LookupError, TypeError):
        return str(status)


def _status_line(got: bytes) -> str:
    first = got.split(b"\r\n", 1)[0].decode("latin-1")
    return first[9:12] if first.startswith("HTTP/1") else ("closed" if not got else "bytes")
