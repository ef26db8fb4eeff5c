"""Kept responses: the same promises in memory and in a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway.test_buckets import redis_url
from hypothesis import given
from hypothesis import strategies as st
from slow_redis import needs_redis

from aegaeon_gateway.conversations import Bounds, Conversations, Kept, MemoryConversations, RedisConversations
from aegaeon_gateway.errors import UnavailableError
from aegaeon_gateway.redis_client import RedisServer

__all__ = ["redis_url"]  # a fixture

BOUNDS = Bounds(seconds=3600, count=3, nbytes=10_000)
ONE = Kept(b'{"id":"1"}', b"[1]")


@pytest.fixture(params=["memory", pytest.param("redis", marks=needs_redis)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Conversations]:
    made: Conversations
    if request.param == "memory":
        made = MemoryConversations(BOUNDS, memory_bytes=15_000)
    else:
        client = RedisServer(request.getfixturevalue("redis_url")).client(30, texts=False)
        made = RedisConversations(BOUNDS, client)
    yield made
    if isinstance(made, MemoryConversations):
        made.check()
    await made.close()


async def ids(store: Conversations, tenant: str) -> list[str]:
    return [id_ for id_ in map(str, range(10)) if await store.get(tenant, id_) is not None]


async def test_a_response_is_its_tenants_alone(store: Conversations) -> None:
    assert await store.put("red", "1", ONE)
    assert await store.get("red", "1") == ONE
    for other in ("blue", "", "red}:value", "red:value"):
        assert await store.get(other, "1") is None
        assert not await store.delete(other, "1")
    assert await store.delete("red", "1")
    assert not await store.delete("red", "1")
    assert await store.get("red", "1") is None


async def test_the_oldest_go_beyond_the_count_and_others_stay(store: Conversations) -> None:
    assert await store.put("blue", "9", ONE)
    for number in range(5):
        assert await store.put("red", str(number), ONE)
    assert await ids(store, "red") == ["2", "3", "4"]
    assert await ids(store, "blue") == ["9"]
    assert await store.put("red", "2", Kept(b"new", b"[]"))  # once more: it is the newest now
    assert await store.put("red", "5", ONE)
    assert await ids(store, "red") == ["2", "4", "5"]


async def test_the_oldest_go_beyond_the_bytes_and_what_is_too_large_is_not_kept(store: Conversations) -> None:
    large = Kept(b"x" * 4000, b"[]")
    for number in range(3):
        assert await store.put("red", str(number), large)
    assert await ids(store, "red") == ["1", "2"]
    assert not await store.put("red", "9", Kept(b"x" * 20_000, b"[]"))
    assert await ids(store, "red") == ["1", "2"]
    assert await store.delete("red", "1")
    assert await store.put("red", "3", large)
    assert await ids(store, "red") == ["2", "3"]


async def test_all_tenants_together_have_a_bound_in_memory_and_the_largest_pays() -> None:
    store = MemoryConversations(BOUNDS, memory_bytes=15_000)
    await store.put("small", "1", Kept(b"x" * 1000, b"[]"))
    for number in range(2):
        await store.put("large", str(number), Kept(b"x" * 4000, b"[]"))
    await store.put("middle", "1", Kept(b"x" * 6000, b"[]"))
    assert [await ids(store, tenant) for tenant in ("small", "large", "middle")] == [["1"], ["1"], ["1"]]
    store.check()


async def test_only_what_is_in_progress_is_replaced(store: Conversations) -> None:
    begun, over = Kept(b"begun", b"[]", beat=1.5), Kept(b"over", b"[]")
    assert not await store.replace("red", "1", begun), "there is none"
    await store.put("red", "1", begun)
    assert not await store.replace("red", "1", Kept(b"x" * 20_000, b"[]")), "too large"
    assert not await store.replace("blue", "1", over), "another tenant's"
    assert await store.replace("red", "1", Kept(b"begun", b"[]", beat=2.5))
    assert await store.replace("red", "1", over)
    assert not await store.replace("red", "1", begun), "it is over"
    assert await store.get("red", "1") == over
    assert await store.delete("red", "1")
    assert not await store.replace("red", "1", begun), "it is deleted"


async def test_memory_forgets_after_its_time() -> None:
    now = [0.0]
    store = MemoryConversations(BOUNDS, 15_000, clock=lambda: now[0])
    await store.put("red", "1", ONE)
    now[0] = 3599
    await store.put("blue", "2", ONE)
    assert await store.get("red", "1") == ONE
    now[0] = 3600
    assert await store.get("red", "1") is None
    assert await store.get("blue", "2") == ONE
    store.check()


@needs_redis
async def test_redis_forgets_after_its_time_and_gateways_share(redis_url: str) -> None:
    def one(seconds: float) -> RedisConversations:
        return RedisConversations(Bounds(seconds, 3, 10_000), RedisServer(redis_url).client(30, texts=False))

    writes, reads = one(0.001), one(3600)
    assert await writes.put("red", "1", ONE)
    assert await reads.put("red", "2", ONE)
    while await reads.get("red", "1") is not None:  # its clock is the server's
        pass
    assert await reads.get("red", "2") == ONE
    await writes.close()
    await reads.close()


async def test_without_redis_nothing_is_kept_and_what_was_is_unavailable(tmp_path: Any) -> None:
    store = RedisConversations(BOUNDS, RedisServer(f"unix://{tmp_path}/none.sock").client(1, texts=False))
    assert not await store.put("red", "1", ONE)
    with pytest.raises(UnavailableError):
        await store.get("red", "1")
    with pytest.raises(UnavailableError):
        await store.delete("red", "1")
    await store.close()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("1234"), st.integers(0, 9000), st.integers(0, 3))))
async def test_what_memory_counts_is_what_it_keeps(steps: list[tuple[str, str, int, int]]) -> None:
    now = [0.0]
    store = MemoryConversations(Bounds(2, 3, 10_000), 15_000, clock=lambda: now[0])
    for tenant, id_, size, wait in steps:
        now[0] += wait
        if size:
            await store.put(tenant, id_, Kept(b"x" * size, b"[]"))
        else:
            await store.delete(tenant, id_)
        store.check()
