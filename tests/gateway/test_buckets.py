"""Buckets: the same promises in memory and in a real Redis."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from slow_redis import SlowRedis, needs_redis, running_redis

from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.tenancy.buckets import Buckets, Counting, MemoryBuckets, connect
from aegaeon_operator.pki import issue, make_authority
from aegaeon_proto.roles import Role


@pytest.fixture
def redis_url(sockets: Path) -> Iterator[str]:
    """A real server on a socket of its own."""
    path = sockets / "redis.sock"
    with running_redis(path):
        yield f"unix://{path}"


SLOWLY = 1e-3  # a second: what fills while a test runs does not count


def counting(url: str | None, password: Path | None = None, ca: Path | None = None, timeout_s: float = 30) -> Counting:
    files = (None if file is None else str(file) for file in (password, ca))
    return connect(url, *files, lambda: 2, timeout_s)


@pytest.fixture(params=["memory", pytest.param("redis", marks=needs_redis)])
async def buckets(request: pytest.FixtureRequest) -> AsyncIterator[Buckets]:
    made = counting(request.getfixturevalue("redis_url") if request.param == "redis" else None)
    yield made.buckets
    await made.close()


async def test_a_bucket_is_full_at_first_and_fills_at_its_rate(buckets: Buckets) -> None:
    assert (await buckets.take("k", 10, SLOWLY, 10, 0)).wait_s == 0
    assert (await buckets.take("k", 5, SLOWLY, 10, 6e4)).wait_s == pytest.approx(5e3, abs=60)
    assert (await buckets.take("k", 5, SLOWLY, 10, 6e4)).wait_s == pytest.approx(10e3, abs=60)


async def test_a_full_bucket_grants_its_size_whatever_the_clock_shows() -> None:
    for second in range(1000):
        buckets = MemoryBuckets(lambda now=second * 61.7: now)
        assert (await buckets.take("k", 10, SLOWLY, 10, 0)).wait_s == 0
        assert (await buckets.take("k", 10, SLOWLY, 10, 1e5)).wait_s == pytest.approx(10e3)


async def test_a_request_that_would_wait_too_long_takes_no_tokens(buckets: Buckets) -> None:
    await buckets.take("k", 10, SLOWLY, 10, 0)
    for _ in range(3):
        assert (await buckets.take("k", 5, SLOWLY, 10, 1e3)).wait_s == pytest.approx(5e3, abs=60)


async def test_buckets_of_tenants_that_are_gone_are_not_kept() -> None:
    now = 0.0
    buckets = MemoryBuckets(lambda: now)
    for number in range(10_000):
        now += 10.0
        assert (await buckets.take(f"tenant {number}", 10, 0.1, 10, 0)).wait_s == 0  # full again in 100 s
    assert len(buckets._full) < 200
    assert (await buckets.take("tenant 9999", 10, 0.1, 10, 1e3)).wait_s == pytest.approx(100.0), "it is not full yet"


async def test_keys_have_separate_buckets(buckets: Buckets) -> None:
    await buckets.take("a", 10, 1, 10, 0)
    assert (await buckets.take("b", 10, 1, 10, 0)).wait_s == 0


@needs_redis
async def test_two_gateways_share_one_bucket_in_redis(redis_url: str) -> None:
    one, two = counting(redis_url), counting(redis_url)
    taken = await asyncio.gather(
        *(b.take("k", 5, SLOWLY, 10, 6e4) for b in (one.buckets, two.buckets, one.buckets, two.buckets))
    )
    assert sorted(each.wait_s for each in taken) == pytest.approx([0, 0, 5e3, 10e3], abs=60)
    await asyncio.gather(one.close(), two.close())


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """A server that wants TLS and a password: its URL, the file of the password, the file of its authority."""
    authority = make_authority("redis", datetime.now(UTC))
    pair = issue(authority, Role.SCHEDULER, datetime.now(UTC))
    password, ca = tmp_path / "password", tmp_path / "ca.crt"
    password.write_text("a long secret\n")
    for path, content in ((ca, authority.certificate), (tmp_path / "c", pair.certificate), (tmp_path / "k", pair.key)):
        path.write_bytes(content)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "-", "--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no", "--save", ""]
    command += ["--tls-cert-file", str(tmp_path / "c"), "--tls-key-file", str(tmp_path / "k"), "--dir", str(tmp_path)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write('requirepass "a long secret"\n')
    server.stdin.close()
    for line in server.stdout:
        if "Ready to accept connections" in line:
            break
    yield f"rediss://scheduler.aegaeon.internal:{port}", password, ca
    server.terminate()
    server.stdout.read()
    server.stdout.close()
    server.wait()


@needs_redis
async def test_a_redis_with_password_and_tls_is_used_and_its_new_password_too(
    guarded: tuple[str, Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, password, ca = guarded
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def here(host: Any, *arguments: Any, **options: Any) -> Any:
        return await resolve("127.0.0.1" if host == "scheduler.aegaeon.internal" else host, *arguments, **options)

    monkeypatch.setattr(loop, "getaddrinfo", here)  # the name in its certificate
    first, second = counting(url, password, ca), counting(url, password, ca)
    one, two = first.buckets, second.buckets
    assert (await one.take("k", 10, SLOWLY, 10, 6e4)).wait_s == 0
    assert (await two.take("k", 5, SLOWLY, 10, 6e4)).wait_s == pytest.approx(5e3, abs=60)
    password.write_text("a newer one")
    client = redis.Redis.from_url(
        url.replace("scheduler.aegaeon.internal", "127.0.0.1"),
        password="a long secret",
        ssl_ca_certs=str(ca),
        ssl_check_hostname=False,
    )
    client.config_set("requirepass", "a newer one")
    client.client_kill_filter(_type="normal", skipme=True)
    client.close()
    assert (await two.take("k", 5, SLOWLY, 10, 6e4)).wait_s == pytest.approx(10e3, abs=60)
    assert not caplog.records, "it was never unavailable"
    untrusting = counting(url, password)  # the system's authorities do not know it
    assert (await untrusting.buckets.take("k", 5, 1, 10, 60)).wait_s == 0
    assert "Redis is unavailable" in caplog.text
    await asyncio.gather(first.close(), second.close(), untrusting.close())


def test_certificate_authorities_without_tls_are_refused() -> None:
    with pytest.raises(ConfigError, match="rediss"):
        connect("redis://somewhere:6379", None, "/etc/ca.crt")


async def test_without_redis_a_gateway_grants_its_share(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of two gateways, half."""
    alone = counting(f"unix://{tmp_path}/none.sock")
    assert (await alone.buckets.take("k", 5, SLOWLY, 10, 0)).wait_s == 0
    assert (await alone.buckets.take("k", 5, SLOWLY, 10, 6e4)).wait_s == pytest.approx(10e3, abs=120)
    assert not (await alone.windows.reserve("k", 100, 50)).wait_s
    assert (await alone.windows.reserve("k", 100, 1)).wait_s
    assert [record.message.partition(" (")[0] for record in caplog.records] == ["Redis is unavailable"]
    await alone.close()


@needs_redis
async def test_a_slow_redis_still_counts_for_all_gateways(redis_url: str, sockets: Path) -> None:
    """40 at once, answers of Redis half a second late: what passes is what passes with a quick one."""
    slow = SlowRedis(redis_url, sockets / "slow.sock")
    slow.delay_s = 0.5
    async with slow.serving():
        both = [counting(f"unix://{slow.path}", timeout_s=2.0) for _ in range(2)]
        taken = await asyncio.gather(*(both[n % 2].buckets.take("k", 1, 0.2, 12, 30) for n in range(40)))
        assert sum(each.wait_s <= 30 for each in taken) in (18, 19), "12 at once, and one each 5 s"
        assert not any(each.link and each.link.away for each in both)
        for each in both:
            await each.close()


@needs_redis
async def test_what_was_granted_without_redis_counts_when_it_is_back(redis_url: str, sockets: Path) -> None:
    slow = SlowRedis(redis_url, sockets / "slow.sock")
    async with slow.serving():
        through, direct = counting(f"unix://{slow.path}", timeout_s=0.3), counting(redis_url)
        slow.delay_s = 2.0
        assert (await through.buckets.take("k", 4, SLOWLY, 10, 0)).wait_s == 0, "of its share"
        assert not (await through.windows.reserve("w", 100, 40)).wait_s
        through.windows.spend("w", 40)
        assert through.link is not None
        assert through.link.away
        slow.delay_s = 0.0
        async with asyncio.timeout(60):
            while through.link.away:  # noqa: ASYNC110  # the link notifies no task
                await asyncio.sleep(0.05)
        assert (await direct.buckets.take("k", 7, SLOWLY, 10, 0)).wait_s > 0, "6 are left"
        assert (await direct.windows.reserve("w", 100, 61)).wait_s > 0, "60 are left"
        assert not (await direct.windows.reserve("w", 100, 60)).wait_s
        await through.close()
        await direct.close()


@given(
    rate=st.floats(0.1, 100),
    size=st.floats(1, 1000),
    takes=st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 50)), min_size=1, max_size=40),
)
def test_no_more_is_granted_than_the_size_plus_the_refill(
    rate: float, size: float, takes: list[tuple[float, float]]
) -> None:
    now = [0.0]
    buckets = MemoryBuckets(lambda: now[0])
    granted: list[tuple[float, float]] = []
    for gap, amount in takes:
        now[0] += gap
        wait, _ = asyncio.run(buckets.take("k", amount, rate, size, 30))
        if wait <= 30:
            granted.append((now[0] + wait, amount))
    for until, _ in granted:
        used = sum(amount for at, amount in granted if at <= until)
        assert used <= size + rate * until + 1e-6 * max(1.0, used)
