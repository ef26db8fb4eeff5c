"""The state of Redis for this process: one slow call is no outage, and an outage is not looked for by every request.

A call that fails, or has no answer in `timeout_s`, means that it cannot. From then on no request waits for it: a task
asks by itself until it answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from aegaeon_gateway.errors import GatewayError
from aegaeon_gateway.redis_client import RedisServer

log = logging.getLogger(__name__)

_PROBE_S = 0.5
Script = Callable[..., Awaitable[Any]]
Settle = Callable[[], Awaitable[None]]


class AwayError(GatewayError):
    """Redis cannot be used at present."""


class RedisLink:
    """Scripts of one Redis. `away`: why it cannot be used; "" while it can; `changed` is called with each change."""

    def __init__(
        self, url: str, timeout_s: float, password: Path | None = None, authorities: Path | None = None
    ) -> None:
        """Files: its password, and the authorities to check its certificate against."""
        self._redis = RedisServer(url, password, authorities).client(timeout_s, texts=True)
        self._probing: asyncio.Task[None] | None = None
        self._settles: list[Settle] = []
        self.away = ""
        self.changed: Callable[[str], None] = lambda away: None

    def script(self, text: str) -> Script:
        """To be given to `call`."""
        made: Script = self._redis.register_script(text)
        return made

    def when_back(self, settle: Settle) -> None:
        """Awaited before Redis counts as back; it raises AwayError where it is not."""
        self._settles.append(settle)

    async def call(self, script: Script, keys: Sequence[str], args: Sequence[float | str]) -> Any:
        """Raises AwayError, at once while Redis is known to be unavailable."""
        if self.away:
            raise AwayError(self.away)
        return await self._called(script, keys, args)

    async def settled(self, script: Script, keys: Sequence[str], args: Sequence[float | str]) -> Any:
        """The same, for what is settled before it counts as back."""
        return await self._called(script, keys, args)

    async def close(self) -> None:
        """Give up connections."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await self._redis.aclose()

    async def _called(self, script: Script, keys: Sequence[str], args: Sequence[float | str]) -> Any:
        try:
            return await script(keys=list(keys), args=list(args))
        except (RedisError, OSError) as error:
            self._is_away(error)
            raise AwayError(str(error)) from error

    def _is_away(self, error: Exception) -> None:
        if not self.away:
            log.warning("Redis is unavailable (%s): this gateway counts its share of quotas alone meanwhile", error)
        before, self.away = self.away, str(error) or type(error).__name__
        if not before:
            self.changed(self.away)
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(_PROBE_S)
            try:
                await self._redis.ping()
                for settle in self._settles:
                    await settle()
            except (RedisError, OSError, AwayError):
                continue
            self.away = ""
            self.changed("")
            log.info("Redis is back: quotas count for all gateways together")
            return
