"""The charge of a request: tokens of quotas that it has reserved, spends as it is served, and gives back at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aegaeon_gateway.tenancy.windows import Room, Windows

_PARTS = 16
"""of a quota, so much is reserved at a time for an answer that goes on"""
_LEAST = 16.0
_POLL_S = (0.05, 1.0)


@dataclass(frozen=True, slots=True)
class TokenQuota:
    """`who`: "tenant NAME" or "model NAME"."""

    who: str
    key: str
    per_minute: float


class Quotas:
    """The token quotas that count for a request, all at once."""

    def __init__(self, windows: Windows, all_: Sequence[TokenQuota]) -> None:
        self._windows = windows
        self.all = all_

    @property
    def smallest(self) -> float:
        return min(quota.per_minute for quota in self.all)

    async def reserve(self, amount: float) -> tuple[TokenQuota | None, float, list[Room]]:
        """Reserve of each quota, or of none: returns the quota that lacks it, seconds until it may have it, the room of
        each up to that one."""
        rooms: list[Room] = []
        reserved = 0
        try:
            for quota in self.all:
                rooms.append(await self._windows.reserve(quota.key, quota.per_minute, amount))
                if rooms[-1].wait_s:
                    return quota, rooms[-1].wait_s, rooms
                reserved += 1
            return None, 0.0, rooms
        finally:  # also where its client leaves meanwhile
            if reserved < len(self.all):
                for quota in self.all[:reserved]:
                    self._windows.give_back(quota.key, amount)

    def spend(self, amount: float) -> None:
        for quota in self.all:
            self._windows.spend(quota.key, amount)

    def give_back(self, amount: float) -> None:
        for quota in self.all:
            self._windows.give_back(quota.key, amount)


class Charge:
    """The charge of a request, from its admission to `close`. `credit`: reserved and not spent yet.

    Where it is used up, `spend` grants nothing until there is more, for which it asks by itself; `refilled` is called
    when there is.
    """

    def __init__(self, quotas: Quotas, uncount: Callable[[], Awaitable[None]]) -> None:
        """`uncount`: gives back that it was a request."""
        self._quotas = quotas
        self._uncount = uncount
        self._prompt = 0
        self._asking: asyncio.Task[None] | None = None
        self.credit = 0.0
        self.refilled: Callable[[], None] = lambda: None

    @property
    def counts(self) -> bool:
        """True when there is a quota of tokens at all."""
        return bool(self._quotas.all)

    @property
    def dry(self) -> bool:
        """Nothing more may be served at present."""
        return self.counts and self.credit < 1

    async def reserve(self, amount: float) -> tuple[TokenQuota | None, float, list[Room]]:
        """See Quotas.reserve."""
        lacking, wait_s, rooms = await self._quotas.reserve(amount)
        if lacking is None:
            self.credit += amount
        return lacking, wait_s, rooms

    def hold_prompt(self, tokens: int) -> None:
        """Reserve the prompt until it is served, with the first output token or with the end."""
        self._prompt = tokens
        self.credit -= tokens

    def spend(self, tokens: int) -> int:
        """How many of these output tokens may be served now; they are charged."""
        if not self.counts:
            return tokens
        self._spend_prompt()
        granted = min(tokens, int(self.credit))
        self.credit -= granted
        self._quotas.spend(granted)
        if self.credit < self._part / 2 and self._asking is None:
            self._asking = asyncio.create_task(self._refill())
        return granted

    async def unmake(self) -> None:
        """Take back all of it: the request was not computed."""
        self.credit += self._prompt
        self._prompt = 0
        await self._uncount()

    def close(self) -> None:
        """Give back what was not needed."""
        if self._asking is not None:
            self._asking.cancel()
        self._spend_prompt()
        if self.counts and self.credit:
            self._quotas.give_back(self.credit)
            self.credit = 0.0

    def _spend_prompt(self) -> None:
        prompt, self._prompt = self._prompt, 0
        if prompt:
            self._quotas.spend(prompt)

    @property
    def _part(self) -> float:
        return max(self._quotas.smallest / _PARTS, min(_LEAST, self._quotas.smallest))

    async def _refill(self) -> None:
        low, high = _POLL_S
        while True:
            lacking, wait_s, _ = await self.reserve(self._part)
            if lacking is None:
                break
            await asyncio.sleep(min(max(wait_s, low), high))
        self._asking = None
        self.refilled()
