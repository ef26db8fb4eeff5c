"""Sends chats to a stack with the official `openai` client: two clients for each model, one chat after the other.

Token ids come back with the text (`return_token_ids`), so that an output can be checked token by token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from httpx2 import HTTPError
from openai import APIError

from aegaeon_cli.demo import clients

CLIENTS = 2
ROUNDS = 6
MAX_TOKENS = 150
REQUEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Chat:
    """One request to make. `temperature` 0 means greedy."""

    model: str
    question: str
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int = MAX_TOKENS


@dataclass(slots=True)
class Exchange:
    """A request and what came back. `times`: seconds from sending to each token; `request`: the server's id of it.

    `sent` and `ended` are of time.monotonic; `ended` is 0 while it is under way.
    """

    chat: Chat
    sent: float
    request: str = ""
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    error: str = ""
    ended: float = 0.0

    @property
    def live(self) -> bool:
        return not self.finish_reason and not self.error


class Traffic:
    """All exchanges so far, and the client that makes them. An exchange that exceeds `patience_s` is cancelled."""

    def __init__(
        self, url: str, key: str = "none", headers: Mapping[str, str] | None = None, patience_s: float | None = None
    ) -> None:
        self._patience_s = patience_s
        self._client = clients.async_client(url, key, timeout=REQUEST_S, default_headers=headers)
        self.exchanges: list[Exchange] = []

    async def run(self, people: Sequence[Sequence[Chat]]) -> None:
        """Run every client's chats one after the other, all clients at once."""
        async with asyncio.TaskGroup() as group:
            for chats in people:
                group.create_task(self._hold(chats))

    async def close(self) -> None:
        await self._client.close()

    async def _hold(self, chats: Sequence[Chat]) -> None:
        for chat in chats:
            await self.ask(chat)

    async def ask(self, chat: Chat) -> Exchange:
        """Stream one chat. An error of the API or a broken stream is stored in the exchange, not raised."""
        exchange = Exchange(chat, time.monotonic())
        self.exchanges.append(exchange)
        try:
            async with asyncio.timeout(self._patience_s):
                await self._stream(exchange)
        except TimeoutError:
            exchange.error = f"not over after {self._patience_s:g} s"
        except (APIError, HTTPError) as error:
            exchange.error = _sentence(error)
        if exchange.live:
            exchange.error = "the stream ended without a finish reason"
        exchange.ended = time.monotonic()
        return exchange

    async def _stream(self, exchange: Exchange) -> None:
        chat = exchange.chat
        stream = await self._client.chat.completions.create(
            model=chat.model,
            messages=[{"role": "user", "content": chat.question}],
            temperature=chat.temperature,
            seed=chat.seed,
            max_completion_tokens=chat.max_tokens,
            stream=True,
            extra_body={"return_token_ids": True},
        )
        async for chunk in stream:
            exchange.request = chunk.id
            for choice in chunk.choices:
                _take(exchange, choice.delta.content or "", token_ids(choice), choice.finish_reason)


def _sentence(error: BaseException) -> str:
    """The message with its cause: "Connection error." alone is not informative."""
    message = f"{error}" or type(error).__name__
    return f"{message} ({type(cause).__name__}: {cause})" if (cause := error.__cause__) else message


def token_ids(choice: Any) -> list[int]:
    """The ids of a streamed choice's new tokens (an extension, so no attribute of the client's type)."""
    return list((choice.model_extra or {}).get("token_ids") or ())


def _take(exchange: Exchange, text: str, tokens: Sequence[int], finish_reason: str | None) -> None:
    exchange.text += text
    exchange.tokens += tokens
    exchange.times += [time.monotonic() - exchange.sent] * len(tokens)
    exchange.finish_reason = finish_reason or exchange.finish_reason


def conversations(
    questions: Mapping[str, Sequence[str]], clients: int = CLIENTS, rounds: int = ROUNDS
) -> list[list[Chat]]:
    """The chats of each client. Every second client samples every second time, with a seed; the rest is greedy."""
    return [
        [_chat(model, known, client * rounds + round_, client % 2 == 1 and round_ % 2 == 1) for round_ in range(rounds)]
        for client in range(clients)
        for model, known in questions.items()
    ]


def _chat(model: str, known: Sequence[str], number: int, sampled: bool) -> Chat:
    return Chat(model, known[number % len(known)], temperature=0.7 if sampled else 0.0, seed=number)
