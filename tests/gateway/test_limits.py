"""What a request takes of its quotas is given back where it is not served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gateway.conftest import HI, model_status
from gateway.test_buckets import SLOWLY, buckets, redis_url
from gateway.test_tenants import RED, gateways, key
from slow_redis import needs_redis

from aegaeon_gateway.errors import PromptExceedsQuotaError, RateLimitedError
from aegaeon_gateway.tenancy import Limits
from aegaeon_gateway.tenancy.buckets import Buckets, Counting, MemoryBuckets
from aegaeon_gateway.tenancy.model import Quota, Tenant
from aegaeon_gateway.tenancy.windows import MemoryWindows, Room
from aegaeon_proto.v1 import gateway_pb2 as pb

__all__ = ["buckets", "gateways", "redis_url"]  # fixtures


def tenant(requests: float | None = None, tokens: float | None = None) -> Tenant:
    return Tenant("red", frozenset({"tiny"}), Quota(requests, tokens))


def limits_of(longest_s: float) -> Limits:
    return Limits(Counting(MemoryBuckets(lambda: 0.0), MemoryWindows(lambda: 0.0)), longest_s)


async def test_what_is_given_back_can_be_taken_again(buckets: Buckets) -> None:
    await buckets.take("a", 10, SLOWLY, 10, 0.0)
    assert (await buckets.take("a", 4, SLOWLY, 10, 0.0)).wait_s > 0
    await buckets.take("a", -4, SLOWLY, 10, 0.0)
    assert (await buckets.take("a", 4, SLOWLY, 10, 0.0)).wait_s == pytest.approx(0, abs=1)
    assert (await buckets.take("a", 1, SLOWLY, 10, 0.0)).wait_s > 100
    await buckets.take("fresh", -5, SLOWLY, 10, 0.0)
    await buckets.take("fresh", 10, SLOWLY, 10, 0.0)
    assert (await buckets.take("fresh", 5, SLOWLY, 10, 0.0)).wait_s > 1000, "no bucket is more than full"


async def test_a_refusal_by_one_quota_takes_nothing_of_the_others() -> None:
    """Else who tries again until the model's quota has room has used up its own by then."""
    limits, red, scarce = limits_of(1.0), tenant(10, 1000), Quota(None, 50.0)
    await limits.admit(red, "tiny", scarce, 50, 0, {})
    for _ in range(20):
        with pytest.raises(RateLimitedError, match="model tiny"):
            await limits.admit(red, "tiny", scarce, 50, 0, {})
    headers: dict[str, str] = {}
    await limits.admit(red, "other", Quota(None, None), 900, 0, headers)
    left = {what: headers[f"x-ratelimit-remaining-{what}"] for what in ("requests", "tokens")}
    assert left == {"requests": "8", "tokens": "50"}


async def test_a_client_that_leaves_while_it_waits_gives_its_turn_back() -> None:
    limits, red, headers = limits_of(100.0), tenant(requests=6), dict[str, str]()
    for _ in range(6):
        await limits.admit(red, "tiny", Quota(None, None), 1, 0, {})
    for _ in range(20):
        waiting = asyncio.create_task(limits.admit(red, "tiny", Quota(None, None), 1, 0, headers))
        await asyncio.sleep(0)  # it begins to wait
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert headers["x-ratelimit-reset-requests"] == "70.000s", "as if it were the first that waits"


async def test_a_prompt_of_more_than_a_minutes_quota_is_refused_with_that_sentence() -> None:
    limits, red, headers = limits_of(1.0), tenant(3, 100), dict[str, str]()
    with pytest.raises(PromptExceedsQuotaError, match="101 tokens, more than the quota of tenant red allows"):
        await limits.admit(red, "tiny", Quota(None, None), 101, 0, {})
    await limits.admit(red, "tiny", Quota(None, None), 100, 0, headers)
    assert headers["x-ratelimit-remaining-requests"] == "2", "a refusal counts as none"


async def test_an_estimate_is_reserved_tokens_are_charged_and_the_rest_is_given_back() -> None:
    limits, red = limits_of(0.0), tenant(tokens=1000)
    charge = await limits.admit(red, "tiny", Quota(None, None), 100, 700, {})
    assert charge.credit == 700
    with pytest.raises(RateLimitedError) as refused:
        await limits.admit(red, "tiny", Quota(None, None), 100, 200, {})
    assert refused.value.retry_after_s <= 60
    assert charge.spend(50) == 50
    charge.close()
    assert (await limits.admit(red, "tiny", Quota(None, None), 100, 750, {})).credit == 750


async def test_an_answer_longer_than_its_estimate_gets_no_more_than_the_quota() -> None:
    limits, red, refilled = limits_of(0.0), tenant(tokens=1000), list[bool]()
    charge = await limits.admit(red, "tiny", Quota(None, None), 100, 100, {})
    charge.refilled = lambda: refilled.append(True)
    served = 0
    while charge.spend(1) or len(refilled) < 13:
        served += 1
        await asyncio.sleep(0)
        if charge.dry and not refilled:
            break
        if served > 5000:
            break
    charge.close()
    window = limits.windows
    assert isinstance(window, MemoryWindows)
    assert window.of("tenant red:tokens").used <= 1000
    assert window.of("tenant red:tokens").reserved == 0


async def test_a_prompt_that_waits_for_an_engine_counts_from_its_first_token_on() -> None:
    """Else what was admitted a minute ago and is computed now would be served beside a whole other minute's worth."""
    now = [0.0]
    windows = MemoryWindows(lambda: now[0])
    limits, red = Limits(Counting(MemoryBuckets(lambda: now[0]), windows), 0.0), tenant(tokens=1000)
    charge = await limits.admit(red, "tiny", Quota(None, None), 900, 50, {})
    now[0] = 65.0
    with pytest.raises(RateLimitedError):
        await limits.admit(red, "tiny", Quota(None, None), 900, 50, {})
    assert charge.spend(1) == 1
    charge.close()
    now[0] = 100.0
    with pytest.raises(RateLimitedError):
        await limits.admit(red, "tiny", Quota(None, None), 900, 50, {})
    assert windows.of("tenant red:tokens").used == 901


class Stuck(MemoryWindows):
    """Answers for no model's quota."""

    async def reserve(self, key: str, size: float, amount: float) -> Room:
        if key.startswith("model"):
            await asyncio.Event().wait()
        return await super().reserve(key, size, amount)


async def test_a_client_that_leaves_while_its_second_quota_is_asked_keeps_nothing_of_the_first() -> None:
    windows = Stuck(lambda: 0.0)
    limits = Limits(Counting(MemoryBuckets(lambda: 0.0), windows), 100.0)
    admission = asyncio.create_task(limits.admit(tenant(tokens=100), "tiny", Quota(None, 50.0), 10, 10, {}))
    await asyncio.sleep(0.01)
    assert windows.of("tenant red:tokens").reserved == 20
    admission.cancel()
    with pytest.raises(asyncio.CancelledError):
        await admission
    assert windows.of("tenant red:tokens").reserved == 0


async def test_a_prompt_of_a_model_that_changed_counts_nothing() -> None:
    limits, red = limits_of(0.0), tenant(tokens=1000)
    charge = await limits.admit(red, "tiny", Quota(None, None), 900, 50, {})
    await charge.unmake()
    charge.close()
    (await limits.admit(red, "tiny", Quota(None, None), 900, 50, {})).close()


def test_the_estimate_follows_the_answers_of_a_model_and_is_no_more_than_what_may_come() -> None:
    limits = limits_of(1.0)
    for _ in range(100):
        limits.answered("tiny", tokens=80, choices=2)
    assert limits.expected("tiny", [1000], 3) == pytest.approx(120, rel=0.05)
    assert limits.expected("tiny", [10, 1000], 1) == pytest.approx(50, rel=0.05)


async def test_a_model_that_changes_at_this_moment_counts_a_request_once(
    gateways: Callable[..., Any], tmp_path: Path
) -> None:
    red = {**RED, "quota": {"requests_per_minute": 3}}
    async with gateways([red], hold_s=2.0) as pool:
        await pool.until_loaded("tiny")
        peer = pool.peer
        former, new = (model_status("tiny", pool.directory) for _ in range(2))
        former.spec.identity, new.spec.identity = "former", "new"
        peer.publish([former])
        body = {"model": "tiny", "messages": [HI]}
        assert (await pool.post("/v1/chat/completions", body, **key("sk-red")))[0] == 200
        peer.submits.clear()
        peer.serve_tokens, peer.reject = False, [pb.Rejected(code=pb.REJECT_CODE_CHANGED)]
        request = asyncio.create_task(pool.post("/v1/chat/completions", body, **key("sk-red")))
        await peer.until(lambda: bool(peer.submits))
        peer.serve_tokens = True
        peer.publish([new])
        status, _, headers = await request
        assert (status, headers["x-ratelimit-remaining-requests"]) == (200, "1")


async def until_metrics(pool: Any, line: str) -> None:
    async with asyncio.timeout(60):
        while line not in await pool.metrics():  # noqa: ASYNC110  # made once a second
            await asyncio.sleep(0.1)


@needs_redis
async def test_the_scheduler_and_the_metrics_learn_that_redis_is_away_and_that_it_is_back(
    gateways: Callable[..., Any], tmp_path: Path, sockets: Path, redis_url: str
) -> None:
    """So does a scheduler that comes later."""
    real, path = Path(redis_url.removeprefix("unix://")), sockets / "late.sock"
    red = {**RED, "quota": {"requests_per_minute": 100}}
    async with gateways([red], redis=f"unix://{path}") as pool:
        await pool.until_loaded("tiny")
        assert (await pool.post("/v1/chat/completions", {"model": "tiny", "messages": [HI]}, **key("sk-red")))[0] == 200
        await pool.peer.until(lambda: bool(pool.peer.redis))
        assert "late.sock" in pool.peer.redis[0]
        await until_metrics(pool, "aegaeon_gateway_redis_up 0.0")
        await pool.peer.crash()
        await pool.peer.start()
        await pool.peer.until(lambda: len(pool.peer.redis) == 2)
        assert pool.peer.redis[0] == pool.peer.redis[1]
        path.symlink_to(real)
        await pool.peer.until(lambda: pool.peer.redis[-1] == "")
        await until_metrics(pool, "aegaeon_gateway_redis_up 1.0")
