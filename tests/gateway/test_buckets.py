"""Buckets: the same promises in memory and in a real Redis."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_gateway.tenancy.buckets import Buckets, MemoryBuckets, RedisBuckets

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed; as root, apt-get install redis-server"
)


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    """A real server on a socket of its own."""
    socket = tmp_path / "redis.sock"
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    while not socket.exists():
        assert server.poll() is None
        time.sleep(0.01)  # the server says nothing that could be waited for
    yield f"unix://{socket}"
    server.terminate()
    server.wait()


@pytest.fixture(params=["memory", pytest.param("redis", marks=needs_redis)])
async def buckets(request: pytest.FixtureRequest) -> AsyncIterator[Buckets]:
    made: Buckets = (
        MemoryBuckets()
        if request.param == "memory"
        else RedisBuckets(request.getfixturevalue("redis_url"), timeout_s=30)
    )
    yield made
    await made.close()


async def test_a_bucket_is_full_at_first_and_fills_at_its_rate(buckets: Buckets) -> None:
    assert await buckets.take("k", 10, 1, 10, 0) == 0
    assert await buckets.take("k", 5, 1, 10, 60) == pytest.approx(5, abs=0.5)
    assert await buckets.take("k", 5, 1, 10, 60) == pytest.approx(10, abs=0.5)


async def test_what_would_wait_too_long_takes_nothing(buckets: Buckets) -> None:
    await buckets.take("k", 10, 1, 10, 0)
    for _ in range(3):
        assert await buckets.take("k", 5, 1, 10, 1) == pytest.approx(5, abs=0.5)


async def test_keys_do_not_share(buckets: Buckets) -> None:
    await buckets.take("a", 10, 1, 10, 0)
    assert await buckets.take("b", 10, 1, 10, 0) == 0


@needs_redis
async def test_two_gateways_share_one_bucket_in_redis(redis_url: str) -> None:
    one, two = RedisBuckets(redis_url, 30), RedisBuckets(redis_url, 30)
    waits = await asyncio.gather(*(b.take("k", 5, 1, 10, 60) for b in (one, two, one, two)))
    assert sorted(round(wait) for wait in waits) == [0, 0, 5, 10]
    await asyncio.gather(one.close(), two.close())


async def test_without_redis_a_gateway_counts_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = RedisBuckets(f"unix://{tmp_path}/none.sock")
    assert await alone.take("k", 10, 1, 10, 0) == 0
    assert await alone.take("k", 5, 1, 10, 60) == pytest.approx(5, abs=0.5)
    assert [record.message.partition(" (")[0] for record in caplog.records] == ["Redis is away"]
    await alone.close()


@given(
    rate=st.floats(0.1, 100),
    size=st.floats(1, 1000),
    takes=st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 50)), min_size=1, max_size=40),
)
def test_no_more_is_ever_granted_than_the_size_and_what_has_filled(
    rate: float, size: float, takes: list[tuple[float, float]]
) -> None:
    now = [0.0]
    buckets = MemoryBuckets(lambda: now[0])
    granted: list[tuple[float, float]] = []
    for gap, amount in takes:
        now[0] += gap
        wait = asyncio.run(buckets.take("k", amount, rate, size, 30))
        if wait <= 30:
            granted.append((now[0] + wait, amount))
    for until, _ in granted:
        used = sum(amount for at, amount in granted if at <= until)
        assert used <= size + rate * until + 1e-6 * max(1.0, used)
