"""Buckets: the same promises in memory and in a real Redis."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.tenancy.buckets import Buckets, MemoryBuckets, RedisBuckets, connect
from aegaeon_operator.pki import issue, make_authority
from aegaeon_proto.roles import Role

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed; as root, apt-get install redis-server"
)


def _answers(path: Path) -> bool:
    """The socket is there before anything listens on it."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.fixture
def redis_url(tmp_path: Path, sockets: Path) -> Iterator[str]:
    """A real server on a socket of its own."""
    path = sockets / "redis.sock"
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    while not _answers(path):
        assert server.poll() is None
        time.sleep(0.01)  # the server says nothing that could be waited for
    yield f"unix://{path}"
    server.terminate()
    server.wait()


SLOWLY = 1e-3  # a second: what fills while a test runs does not count


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
    one, two = RedisBuckets(redis_url, 30), RedisBuckets(redis_url, 30)
    taken = await asyncio.gather(*(b.take("k", 5, 1, 10, 60) for b in (one, two, one, two)))
    waits = [each.wait_s for each in taken]
    assert sorted(round(wait) for wait in waits) == [0, 0, 5, 10]
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
    one, two = RedisBuckets(url, 30, password, ca), RedisBuckets(url, 30, password, ca)
    assert (await one.take("k", 10, 1, 10, 60)).wait_s == 0
    assert (await two.take("k", 5, 1, 10, 60)).wait_s == pytest.approx(5, abs=0.5)
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
    assert (await two.take("k", 5, 1, 10, 60)).wait_s == pytest.approx(10, abs=0.7)
    assert not caplog.records, "it was never unavailable"
    untrusting = RedisBuckets(url, 30, password)  # the system's authorities do not know it
    assert (await untrusting.take("k", 5, 1, 10, 60)).wait_s == 0
    assert "Redis is unavailable" in caplog.text
    await asyncio.gather(one.close(), two.close(), untrusting.close())


def test_certificate_authorities_without_tls_are_refused() -> None:
    with pytest.raises(ConfigError, match="rediss"):
        connect("redis://somewhere:6379", None, "/etc/ca.crt")


async def test_without_redis_a_gateway_limits_locally(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = RedisBuckets(f"unix://{tmp_path}/none.sock")
    assert (await alone.take("k", 10, 1, 10, 0)).wait_s == 0
    assert (await alone.take("k", 5, 1, 10, 60)).wait_s == pytest.approx(5, abs=0.5)
    assert [record.message.partition(" (")[0] for record in caplog.records] == ["Redis is unavailable"]
    await alone.close()


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
