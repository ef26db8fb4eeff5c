"""Token buckets, in this process or in Redis for all gateways together.

A bucket is the time at which it will be full (the generic cell rate algorithm): one number, moved forward by what is
taken. A request that takes more than there is learns how long to wait, so waiters are served in order without a queue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from redis.exceptions import RedisError

from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.redis_client import RedisServer

log = logging.getLogger(__name__)

_PREFIX = "aegaeon:bucket:"
_TIMEOUT_S = 0.25
_SPARE = 64  # buckets beside twice as many as were not full, before those that are full are looked for
# KEYS[1]; ARGV: amount, rate per second, size, longest wait (all numbers). Returns Taken, each as text.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local amount, rate, size, longest = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local from = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local full, wait = from + amount / rate, math.max(from - now + (amount - size) / rate, 0)
if wait <= longest then
  redis.call('SET', KEYS[1], string.format('%.6f', full), 'PX', math.max(math.ceil((full - now) * 1000), 0) + 1000)
end
return {string.format('%.6f', wait), string.format('%.6f', (wait <= longest and full or from) - now)}
"""


class Taken(NamedTuple):
    """Seconds: to wait for what was asked for, and until the bucket is full again."""

    wait_s: float
    full_s: float


class Buckets(Protocol):
    """Buckets by key, made full at their first use."""

    async def take(self, key: str, amount: float, rate: float, size: float, longest_s: float) -> Taken:
        """Take `amount` from a bucket of `size` that fills at `rate` per second.

        A wait beyond `longest_s` means that nothing was taken. A negative amount is given back.
        """
        ...

    async def close(self) -> None:
        """Give up connections."""
        ...


class MemoryBuckets:
    """Of one process. A bucket that is full is as good as none, and goes: tenants and models come and go."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, float] = {}
        self._most = _SPARE

    async def take(self, key: str, amount: float, rate: float, size: float, longest_s: float) -> Taken:
        """See Buckets."""
        now = self._clock()
        start = max(self._full.get(key, now), now)
        wait = max(start - now + (amount - size) / rate, 0.0)  # exactly 0 for what a full bucket holds
        full = start
        if wait <= longest_s:
            full = self._full[key] = start + amount / rate
        if len(self._full) > self._most:
            self._full = {one: at for one, at in self._full.items() if at > now}
            self._most = 2 * len(self._full) + _SPARE
        return Taken(wait, full - now)

    async def close(self) -> None:
        """See Buckets."""


class RedisBuckets:
    """Shared by all gateways that use the same Redis. While it is unavailable, this process counts by itself."""

    def __init__(
        self, url: str, timeout_s: float = _TIMEOUT_S, password: Path | None = None, authorities: Path | None = None
    ) -> None:
        """`timeout_s`: after that long without an answer Redis counts as unavailable. Files: its password, and the
        authorities to check its certificate against."""
        self._redis = RedisServer(url, password, authorities).client(timeout_s, texts=True)
        self._take: Callable[..., Awaitable[Any]] = self._redis.register_script(_TAKE)
        self._alone = MemoryBuckets()
        self._away = False

    async def take(self, key: str, amount: float, rate: float, size: float, longest_s: float) -> Taken:
        """See Buckets."""
        try:
            taken = await self._take(keys=[_PREFIX + key], args=[amount, rate, size, min(longest_s, 1e9)])
        except (RedisError, OSError) as error:
            self._say_away(error)
            return await self._alone.take(key, amount, rate, size, longest_s)
        if self._away:
            log.info("Redis is back: quotas count for all gateways together")
            self._away = False
        return Taken(*map(float, taken))

    async def close(self) -> None:
        """See Buckets."""
        await self._redis.aclose()

    def _say_away(self, error: Exception) -> None:
        if not self._away:
            log.warning("Redis is unavailable (%s): quotas count for this gateway alone meanwhile", error)
        self._away = True


def connect(url: str | None, password_file: str | None = None, ca_file: str | None = None) -> Buckets:
    """Buckets in the Redis at `url` (redis://HOST:PORT/DB, rediss:// or unix://PATH); without one, of this process.

    Raises ConfigError when the files do not go with it.
    """
    if not url:
        return MemoryBuckets()
    if ca_file and not url.startswith("rediss://"):
        raise ConfigError("redis_ca_file: is for a rediss:// URL; correct `redis`, or leave it out")
    return RedisBuckets(
        url,
        password=Path(password_file) if password_file else None,
        authorities=Path(ca_file) if ca_file else None,
    )
