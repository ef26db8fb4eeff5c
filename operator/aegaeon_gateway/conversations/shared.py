"""Responses kept in Redis, for all gateways together."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import redis.asyncio
from redis.exceptions import RedisError

from aegaeon_gateway.conversations.model import Bounds, Kept
from aegaeon_gateway.errors import UnavailableError, overloaded

log = logging.getLogger(__name__)

_PREFIX = "aegaeon:responses:"
# KEYS: an id's value, and of its tenant: ids by time, and their sizes with the total under "". ARGV: id, value,
# milliseconds to keep it, most ids, most bytes, and 1 where it is only put in the place of one with a beat. All keys of
# a tenant have one hash tag, evicted ones too. The last 8 bytes of a value are its beat (msgpack, float64).
_PUT = """
local ids, sizes = KEYS[2], KEYS[3]
if ARGV[6] == '1' then
  local before = redis.call('GET', KEYS[1])
  if not before or string.sub(before, -8) == string.rep('\\0', 8) then return 0 end
end
local prefix = string.sub(KEYS[1], 1, #KEYS[1] - #ARGV[1])
local time = redis.call('TIME')
local now, ttl = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[3])
local function remove(id)
  local size = redis.call('HGET', sizes, id)
  if size then redis.call('HINCRBY', sizes, '', -tonumber(size)) end
  redis.call('HDEL', sizes, id)
  redis.call('ZREM', ids, id)
  redis.call('DEL', prefix .. id)
end
remove(ARGV[1])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', ids, '-inf', now - ttl)) do remove(id) end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ttl)
redis.call('ZADD', ids, now, ARGV[1])
redis.call('HSET', sizes, ARGV[1], #ARGV[2])
redis.call('HINCRBY', sizes, '', #ARGV[2])
while redis.call('ZCARD', ids) > tonumber(ARGV[4])
    or tonumber(redis.call('HGET', sizes, '')) > tonumber(ARGV[5]) do
  remove(redis.call('ZRANGE', ids, 0, 0)[1])
end
redis.call('PEXPIRE', ids, ttl)
redis.call('PEXPIRE', sizes, ttl)
return 1
"""
_DELETE = """
local size = redis.call('HGET', KEYS[3], ARGV[1])
if size then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('HINCRBY', KEYS[3], '', -tonumber(size))
end
return redis.call('DEL', KEYS[1])
"""


class RedisConversations:
    """Implements Conversations."""

    def __init__(self, bounds: Bounds, client: redis.asyncio.Redis) -> None:
        """`client` returns bytes; it is closed with this."""
        self._bounds = bounds
        self._redis = client
        self._put: Callable[..., Awaitable[Any]] = client.register_script(_PUT)
        self._delete: Callable[..., Awaitable[Any]] = client.register_script(_DELETE)

    async def put(self, tenant: str, id_: str, kept: Kept) -> bool:
        """See Conversations."""
        try:
            return await self._put_if(tenant, id_, kept, beating=False)
        except (RedisError, OSError) as error:
            log.warning("a response is not kept: Redis is unavailable (%s)", error)
            return False

    async def replace(self, tenant: str, id_: str, kept: Kept) -> bool:
        """See Conversations."""
        try:
            return await self._put_if(tenant, id_, kept, beating=True)
        except (RedisError, OSError) as error:
            raise _unavailable() from error

    async def _put_if(self, tenant: str, id_: str, kept: Kept, *, beating: bool) -> bool:
        bounds, value = self._bounds, msgspec.msgpack.encode(kept)
        if len(value) > bounds.nbytes or not bounds.count:
            return False
        arguments = [id_, value, max(int(bounds.seconds * 1000), 1), bounds.count, bounds.nbytes, int(beating)]
        return bool(await self._put(keys=_keys(tenant, id_), args=arguments))

    async def get(self, tenant: str, id_: str) -> Kept | None:
        """See Conversations."""
        try:
            value: Any = await self._redis.get(_keys(tenant, id_)[0])
        except (RedisError, OSError) as error:
            raise _unavailable() from error
        return None if value is None else msgspec.msgpack.decode(value, type=Kept)

    async def delete(self, tenant: str, id_: str) -> bool:
        """See Conversations."""
        try:
            return bool(await self._delete(keys=_keys(tenant, id_), args=[id_]))
        except (RedisError, OSError) as error:
            raise _unavailable() from error

    async def close(self) -> None:
        """See Conversations."""
        await self._redis.aclose()


def _keys(tenant: str, id_: str) -> list[str]:
    own = f"{_PREFIX}{{{tenant}}}:"
    return [f"{own}value:{id_}", f"{own}ids", f"{own}sizes"]


def _unavailable() -> UnavailableError:
    return overloaded("Responses that were kept cannot be read at present; try again.")
