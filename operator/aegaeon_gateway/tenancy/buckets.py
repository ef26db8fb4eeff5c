"""Token buckets, in this process or in Redis for all gateways together.

A bucket is the time at which it will be full (the generic cell rate algorithm): one number, moved forward by what is
taken. A request that takes more than there is learns how long to wait, so waiters are served in order without a queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import NamedTuple, Protocol

from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.tenancy.redis_link import AwayError, RedisLink
from aegaeon_gateway.tenancy.redis_windows import RedisWindows
from aegaeon_gateway.tenancy.windows import MemoryWindows, Windows

_PREFIX = "aegaeon:bucket:"
_TIMEOUT_S = 2.0  # a slow Redis still counts for all; requests wait for its answer, once
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


class MemoryBuckets:
    """Buckets in this process. A bucket that is full is as good as none, and goes: tenants and models come and go."""

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
            self._full = {bucket: at for bucket, at in self._full.items() if at > now}
            self._most = 2 * len(self._full) + _SPARE
        return Taken(wait, full - now)


class RedisBuckets:
    """Shared by all gateways that use the same Redis. Without it each has its share (of as many as `gateways`
    says), less what it took before; what it takes then is taken from the common bucket when Redis is back."""

    def __init__(self, link: RedisLink, gateways: Callable[[], int]) -> None:
        self._link = link
        self._take = link.script(_TAKE)
        self._gateways = gateways
        self._alone = MemoryBuckets()
        self._owed: dict[str, tuple[float, float, float]] = {}  # amount, rate and size of what was taken without it
        link.when_back(self._settle)

    async def take(self, key: str, amount: float, rate: float, size: float, longest_s: float) -> Taken:
        """See Buckets."""
        try:
            args = [amount, rate, size, min(longest_s, 1e9)]
            taken = Taken(*map(float, await self._link.call(self._take, [_PREFIX + key], args)))
        except AwayError:
            return await self._take_alone(key, amount, rate, size, longest_s)
        if taken.wait_s <= longest_s:
            await self._alone.take(key, amount, rate, size, inf)
        return taken

    async def _take_alone(self, key: str, amount: float, rate: float, size: float, longest_s: float) -> Taken:
        gateways = max(self._gateways(), 1)
        taken = await self._alone.take(key, amount, rate / gateways, size / gateways, longest_s)
        if taken.wait_s <= longest_s:
            owed = self._owed.get(key, (0.0, rate, size))[0]
            self._owed[key] = min(owed + amount, size), rate, size
        return taken

    async def _settle(self) -> None:
        while self._owed:
            key, (amount, rate, size) = next(iter(self._owed.items()))
            await self._link.settled(self._take, [_PREFIX + key], [amount, rate, size, 1e9])
            self._owed.pop(key, None)


class Counting(NamedTuple):
    """Where quotas are counted: requests in buckets, tokens in windows. `link`: to their common Redis, if any."""

    buckets: Buckets
    windows: Windows
    link: RedisLink | None = None

    async def close(self) -> None:
        """Give up connections; what was served is sent first."""
        await self.windows.close()
        if self.link is not None:
            await self.link.close()


def connect(
    url: str | None,
    password_file: str | None = None,
    ca_file: str | None = None,
    gateways: Callable[[], int] = lambda: 1,
    timeout_s: float = _TIMEOUT_S,
) -> Counting:
    """In the Redis at `url` (redis://HOST:PORT/DB, rediss:// or unix://PATH); without one, in this process.

    Raises ConfigError when the files do not go with it.
    """
    if not url:
        return Counting(MemoryBuckets(), MemoryWindows())
    if ca_file and not url.startswith("rediss://"):
        raise ConfigError("redis_ca_file: is for a rediss:// URL; correct `redis`, or leave it out")
    link = RedisLink(url, timeout_s, *(Path(file) if file else None for file in (password_file, ca_file)))
    return Counting(RedisBuckets(link, gateways), RedisWindows(link, gateways), link)
