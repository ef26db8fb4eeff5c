"""Quotas of tenants and models over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gateway.conftest import HI
from gateway.test_tenants import BLUE, RED, gateways, key

from aegaeon_gateway.tenancy.windows import MemoryWindows

__all__ = ["gateways"]  # a fixture


async def test_requests_above_the_rate_limit_wait_and_then_get_429(
    gateways: Callable[..., Any], tmp_path: Path
) -> None:
    red = {**RED, "quota": {"requests_per_minute": 3}}
    async with gateways([red, BLUE], hold_s=3.0) as pool:
        body = {"model": "tiny", "messages": [HI]}
        answers = [await pool.post("/v1/chat/completions", body, **key("sk-red")) for _ in range(4)]
        assert [status for status, _, _ in answers] == [200, 200, 200, 429]
        _, refusal, headers = answers[-1]
        assert refusal["error"]["code"] == "rate_limit_exceeded"
        assert refusal["error"]["type"] == "requests"
        assert 15 <= int(headers["Retry-After"]) <= 20
        assert [headers["x-ratelimit-remaining-requests"] for _, _, headers in answers] == ["2", "1", "0", "0"]
        assert headers["x-ratelimit-limit-requests"] == "3"
        assert 58 < float(headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
        assert "x-ratelimit-limit-tokens" not in headers, "there is no such quota"
        other = {"model": "other", "messages": [HI]}
        assert (await pool.post("/v1/chat/completions", other, **key("sk-blue")))[0] == 200


async def test_a_short_wait_for_the_rate_limit_delays_the_request(gateways: Callable[..., Any], tmp_path: Path) -> None:
    quota = {"requests_per_minute": 600}  # one each tenth of a second, once 600 are used
    async with gateways([RED], model_quotas={"tiny": quota}) as pool:
        limits = pool.served.limits
        await limits.buckets.take("model tiny:requests", 600, 10, 600, 0)
        status, _, headers = await pool.post(
            "/v1/chat/completions", {"model": "tiny", "messages": [HI]}, **key("sk-red")
        )
        assert status == 200
        assert not [name for name in headers if name.startswith("x-ratelimit")], "what others ask of a model is theirs"


async def test_output_is_charged_to_the_token_rate_limit(gateways: Callable[..., Any], tmp_path: Path) -> None:
    red = {**RED, "quota": {"tokens_per_minute": 100}}
    async with gateways([red], hold_s=1.0) as pool:
        await pool.until_loaded("tiny")
        body = {"model": "tiny", "messages": [HI]}
        answers = [await pool.post("/v1/chat/completions", body, **key("sk-red")) for _ in range(12)]
        served = [answer["usage"]["total_tokens"] for status, answer, _ in answers if status == 200]
        assert 0 < sum(served) <= 100
        _, refusal, headers = answers[-1]
        assert refusal["error"]["type"] == "tokens"
        assert 1 <= int(headers["Retry-After"]) <= 61
        window = pool.served.limits.windows.of("tenant red:tokens")
        assert (window.used, window.reserved) == (sum(served), 0)


async def test_a_stream_whose_quota_is_used_up_is_held_and_goes_on_when_there_is_more(
    gateways: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No engine works on it meanwhile, a comment says why, and the answer is the same."""
    now = [1000.0]
    red = {**RED, "quota": {"tokens_per_minute": 30}}
    body = {"model": "tiny", "messages": [HI], "n": 3, "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    async with gateways([red], hold_s=2.0, keepalive_s=0.1) as pool:
        await pool.until_loaded("tiny")
        pool.peer.pace_s = 0.02
        windows = MemoryWindows(lambda: now[0])
        monkeypatch.setattr(pool.served.limits, "windows", windows)
        async with (
            asyncio.timeout(60),
            pool.http.post(f"{pool.url}/v1/chat/completions", json={**body, "stream": True}, **key("sk-red")) as answer,
        ):
            read = asyncio.create_task(answer.text())
            await pool.peer.until(lambda: bool(pool.peer.cancels))
            await asyncio.sleep(0.3)
            while not read.done():
                assert windows.of("tenant red:tokens").used <= 30
                await asyncio.sleep(0.05)
                now[0] += 10.0
            stream = await read
        assert stream.count('"finish_reason":"') == 3
        assert ": waiting for the quota of tokens" in stream
        assert windows.of("tenant red:tokens").reserved == 0


async def test_twenty_requests_at_once_have_one_quota(gateways: Callable[..., Any], tmp_path: Path) -> None:
    red = {**RED, "quota": {"tokens_per_minute": 200}}
    async with gateways([red], hold_s=5.0) as pool:
        await pool.until_loaded("tiny")
        body = {"model": "tiny", "messages": [HI], "max_tokens": 30, "ignore_eos": True}
        answers = await asyncio.gather(*(pool.post("/v1/chat/completions", body, **key("sk-red")) for _ in range(20)))
        served = sum(answer["usage"]["total_tokens"] for status, answer, _ in answers if status == 200)
        assert 0 < served <= 200
        assert {status for status, _, _ in answers} == {200, 429}
