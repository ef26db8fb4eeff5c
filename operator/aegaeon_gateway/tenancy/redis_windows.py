"""Windows that all gateways with the same Redis share.

Each gateway tells what it holds in reserve as a whole, so that a call whose answer was lost does no harm, and what it
has served under a number, so that it is counted once. Without Redis it has its share of a quota, of which what it
served before is part; what it serves then is counted in Redis when that is back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import count

from aegaeon_gateway.tenancy.redis_link import AwayError, RedisLink
from aegaeon_gateway.tenancy.windows import SLICE_S, SPAN_S, MemoryWindows, Room

_PREFIX = "aegaeon:window:"
_FLUSH_S = 0.5
_LOST_S = 120.0  # a gateway that says nothing of what it holds for so long holds nothing
# KEYS: what was served by second; what gateways hold (number, amount, time); the newest call of each. ARGV: gateway,
# number, served since the number before, held, wanted, size, seconds that a slice counts, seconds until a gateway is
# lost, call. Returns Room as text, wait_s -1 where only a reservation is in the way. A call that a later one has
# overtaken finds what it wants in what that one said to be held.
_SCRIPT = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local gateway, number, served, held, want, size = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]),
  tonumber(ARGV[5]), tonumber(ARGV[6])
local counts, lost, call = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local before = redis.call('HGET', KEYS[2], gateway)
if before and tonumber(redis.call('HGET', KEYS[3], gateway) or '0') > call then
  held = tonumber(string.match(before, '^%d+ (%S+)')) - want
else
  redis.call('HSET', KEYS[3], gateway, call)
end
local newest = before and tonumber(string.match(before, '^(%d+)')) or 0
if number > newest then
  redis.call('HINCRBYFLOAT', KEYS[1], math.floor(now), served)
  newest = number
end
local used, slices, entries = 0, {}, redis.call('HGETALL', KEYS[1])
for i = 1, #entries, 2 do
  local begun = tonumber(entries[i])
  if begun + counts <= now then
    redis.call('HDEL', KEYS[1], entries[i])
  else
    used = used + tonumber(entries[i + 1])
    slices[#slices + 1] = {begun, tonumber(entries[i + 1])}
  end
end
local elsewhere, holders = 0, redis.call('HGETALL', KEYS[2])
for i = 1, #holders, 2 do
  local amount, at = string.match(holders[i + 1], '^%d+ (%S+) (%S+)$')
  if holders[i] ~= gateway then
    if now - tonumber(at) > lost then
      redis.call('HDEL', KEYS[2], holders[i])
      redis.call('HDEL', KEYS[3], holders[i])
    else
      elsewhere = elsewhere + tonumber(amount)
    end
  end
end
local free = size - used - elsewhere - held
local wait, full, lacking = 0, 0, want - free
if lacking <= 0 then
  held, free = held + want, free - want
else
  wait = -1
end
table.sort(slices, function(one, other) return one[1] < other[1] end)
for _, slice in ipairs(slices) do
  lacking = lacking - slice[2]
  if wait < 0 and lacking <= 0 then wait = slice[1] + counts - now end
  full = slice[1] + counts - now
end
redis.call('HSET', KEYS[2], gateway, string.format('%d %.3f %.3f', newest, held, now))
redis.call('EXPIRE', KEYS[1], math.ceil(counts) + 1)
redis.call('EXPIRE', KEYS[2], math.ceil(lost) + 1)
redis.call('EXPIRE', KEYS[3], math.ceil(lost) + 1)
return {string.format('%.6f', wait), string.format('%.6f', math.max(free, 0)), string.format('%.6f', full)}
"""


class RedisWindows:
    """Implements Windows. `gateways`: how many of the pool there are."""

    def __init__(self, link: RedisLink, gateways: Callable[[], int]) -> None:
        self._link = link
        self._script = link.script(_SCRIPT)
        self._gateways = gateways
        self._name = secrets.token_hex(8)
        self._numbers = Counter[str]()
        self._calls = count(1)
        self._local = MemoryWindows()
        self._pending = defaultdict[str, float](float)  # of attempts that are under way: they count as reserved
        self._served = defaultdict[str, float](float)  # and not sent yet
        self._unconfirmed: dict[str, tuple[int, float]] = {}  # under a number, and not known to have arrived
        self._held: set[str] = set()
        self._flushing: asyncio.Task[None] | None = None
        link.when_back(self._settle)

    async def reserve(self, key: str, size: float, amount: float) -> Room:
        """See Windows."""
        held = self._outstanding(key)
        self._pending[key] += amount
        try:
            room = await self._link.call(self._script, self._keys(key), self._args(0, 0.0, held, amount, size))
        except AwayError:
            return await self._local.reserve(key, size / max(self._gateways(), 1), amount)
        finally:
            self._pending[key] -= amount
            self._look_after(key)  # a call that is cancelled may have reserved it all the same
        wait_s, left, full_s = map(float, room)
        if not wait_s:
            self._local.of(key).reserved += amount
        return Room(wait_s if wait_s >= 0 else 1.0, left, full_s)

    def spend(self, key: str, amount: float) -> None:
        """See Windows."""
        self._local.spend(key, amount)
        self._serve(key, amount)

    def give_back(self, key: str, amount: float) -> None:
        """See Windows."""
        self._local.give_back(key, amount)
        self._look_after(key)

    async def close(self) -> None:
        """See Windows. What was served is sent first."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.gather(self._flushing, return_exceptions=True)
        if not self._link.away:
            for key in list(self._held):
                try:
                    await self._tell(key)
                except AwayError:
                    return

    def _serve(self, key: str, amount: float) -> None:
        self._served[key] += amount
        self._look_after(key)

    def _outstanding(self, key: str) -> float:
        """Tokens that count for this gateway beside those that Redis knows to be served."""
        unconfirmed = self._unconfirmed.get(key, (0, 0.0))[1]
        return self._local.of(key).reserved + self._pending[key] + self._served[key] + unconfirmed

    def _keys(self, key: str) -> list[str]:
        return [f"{_PREFIX}{{{key}}}:{name}" for name in ("served", "held", "calls")]

    def _args(self, number: int, served: float, held: float, want: float, size: float) -> list[float | str]:
        return [self._name, number, served, held, want, size, SLICE_S + SPAN_S, _LOST_S, next(self._calls)]

    def _look_after(self, key: str) -> None:
        self._held.add(key)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        """Tell what was served and what is held, until there is nothing of either."""
        while self._held:
            await asyncio.sleep(_FLUSH_S)
            if self._link.away:
                continue
            for key in list(self._held):
                try:
                    await self._tell(key)
                except AwayError:
                    break

    async def _tell(self, key: str) -> None:
        """Raises AwayError; it is sent again then, under the same number."""
        if key not in self._unconfirmed:
            self._numbers[key] += 1
            self._unconfirmed[key] = self._numbers[key], self._served.pop(key, 0.0)
        number, served = self._unconfirmed[key]
        held = self._outstanding(key) - served
        await self._link.settled(self._script, self._keys(key), self._args(number, served, held, 0.0, 0.0))
        del self._unconfirmed[key]
        if not self._outstanding(key):
            self._held.discard(key)

    async def _settle(self) -> None:
        """Redis is back: what was served without it counts, as far as it is of the last minute."""
        for key in list(self._held):
            unconfirmed = self._unconfirmed.get(key, (0, 0.0))[1]
            self._served[key] = min(self._served[key], max(self._local.of(key).used - unconfirmed, 0.0))
            await self._tell(key)
