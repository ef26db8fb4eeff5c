"""Sliding windows of tokens: the bound holds in any minute, in memory and in a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway.test_buckets import counting, redis_url
from hypothesis import given
from hypothesis import strategies as st
from slow_redis import needs_redis

from aegaeon_gateway.tenancy.buckets import Counting
from aegaeon_gateway.tenancy.windows import MemoryWindows, Windows

__all__ = ["redis_url"]  # a fixture


@pytest.fixture(params=["memory", pytest.param("redis", marks=needs_redis)])
async def windows(request: pytest.FixtureRequest) -> AsyncIterator[Windows]:
    made: Counting = counting(request.getfixturevalue("redis_url") if request.param == "redis" else None)
    yield made.windows
    await made.close()


async def test_what_is_reserved_or_spent_is_not_there_for_others_and_what_is_given_back_is(windows: Windows) -> None:
    assert (await windows.reserve("k", 100, 60))[:2] == (0, 40)
    assert (await windows.reserve("k", 100, 41)).wait_s > 0
    windows.spend("k", 30)
    windows.give_back("k", 30)
    assert (await windows.reserve("k", 100, 70))[:2] == (0, 0)
    lacking = await windows.reserve("k", 100, 1)
    assert 0 < lacking.wait_s <= 61
    assert not (await windows.reserve("other", 100, 100)).wait_s


@needs_redis
async def test_two_gateways_have_one_window_and_a_killed_one_is_counted_once(redis_url: str) -> None:
    first, other = counting(redis_url), counting(redis_url)
    assert not (await first.windows.reserve("k", 100, 50)).wait_s
    assert (await other.windows.reserve("k", 100, 51)).wait_s > 0
    first.windows.spend("k", 50)
    await first.close()  # tells what it has served
    assert (await other.windows.reserve("k", 100, 51)).wait_s > 0
    assert not (await other.windows.reserve("k", 100, 50)).wait_s
    await other.close()


@needs_redis
@pytest.mark.parametrize("amounts", [(50, 30), (50, 60)], ids=["both fit", "the older does not"])
async def test_a_reservation_that_a_later_one_overtakes_is_counted(
    redis_url: str, amounts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls go over several connections, so Redis may see them in another order."""
    gateway, other = counting(redis_url), counting(redis_url)
    assert gateway.link is not None
    call, overtaken, first = gateway.link.call, asyncio.Event(), iter([True])

    async def reordered(*arguments: Any) -> Any:
        if next(first, False):
            await overtaken.wait()
            return await call(*arguments)
        answered = await call(*arguments)
        overtaken.set()
        return answered

    monkeypatch.setattr(gateway.link, "call", reordered)
    rooms = await asyncio.gather(*(gateway.windows.reserve("k", 100, amount) for amount in amounts))
    held = sum(amount for amount, room in zip(amounts, rooms, strict=True) if not room.wait_s)
    assert 0 < held <= 100
    assert (await other.windows.reserve("k", 100, 101 - held)).wait_s > 0
    assert not (await other.windows.reserve("k", 100, 100 - held)).wait_s
    await gateway.close()
    await other.close()


@given(
    size=st.integers(1, 500),
    steps=st.lists(st.tuples(st.floats(0, 40), st.integers(1, 300), st.floats(0, 1)), min_size=1, max_size=60),
)
def test_in_any_minute_no_more_is_served_than_the_size(size: int, steps: list[tuple[float, int, float]]) -> None:
    """Whatever is reserved, served at another time, or given back."""
    now = [0.0]
    windows, held, served = MemoryWindows(lambda: now[0]), 0, list[tuple[float, int]]()
    for gap, amount, share in steps:
        now[0] += gap
        if not asyncio.run(windows.reserve("k", size, amount)).wait_s:
            held += amount
        spent = int(held * share)
        if spent:
            windows.spend("k", spent)
            served.append((now[0], spent))
            held -= spent
        back = held // 2
        windows.give_back("k", back)
        held -= back
    for begin, _ in served:
        assert sum(amount for at, amount in served if begin <= at <= begin + 60) <= size


async def test_windows_of_tenants_that_are_gone_are_not_kept() -> None:
    now = [0.0]
    windows = MemoryWindows(lambda: now[0])
    for number in range(5000):
        now[0] += 10.0
        await windows.reserve(f"tenant {number}", 10, 5)
        windows.spend(f"tenant {number}", 5)
    assert len(windows._windows) < 200
