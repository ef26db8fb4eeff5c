"""Quotas of tenants and models: a request waits a bounded time for its turn, or is refused at once with Retry-After."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from math import floor, inf

from aegaeon_gateway.errors import RateLimitedError
from aegaeon_gateway.tenancy.buckets import Buckets
from aegaeon_gateway.tenancy.model import Quota, Tenant
from aegaeon_gateway.uncancelled import to_its_end

_MINUTE_S = 60.0
_ROUNDING = 1e-6  # a bucket of 10 from which 1 was taken has 8.999999999


@dataclass(frozen=True, slots=True)
class Portion:
    """What a request took of one bucket."""

    key: str
    amount: float
    per_minute: float

    @property
    def rate(self) -> float:
        """Of its bucket, per second."""
        return self.per_minute / _MINUTE_S


class Limits:
    """`admit` before a request, `charge` for what it brought. Buckets hold what is allowed in a minute."""

    def __init__(self, buckets: Buckets, longest_s: float) -> None:
        """`longest_s`: how long a request may wait for its quota, seconds."""
        self.buckets = buckets
        self._longest_s = longest_s

    async def admit(
        self, tenant: Tenant, model: str, model_quota: Quota, prompt_tokens: int, headers: MutableMapping[str, str]
    ) -> list[Portion]:
        """Take one request and its prompt, waiting for both; returns what was taken of which bucket.

        Raises RateLimitedError when that would take too long. Then, and where its client leaves meanwhile, all is given
        back. What is left of the tenant's own quotas is put into `headers`; a model's say how much others ask of it.
        """
        wait, taken = 0.0, list[Portion]()
        try:
            for who, quota in _quotas(tenant, model, model_quota):
                shown = headers if who != _of_model(model) else {}
                for what, portion in _portions(who, quota, prompt_tokens):
                    wait = max(wait, await self._take(who, what, portion, shown))
                    taken.append(portion)
            if wait > 0:
                await asyncio.sleep(wait)  # the quota's own pace
        except BaseException:
            await self.give_back(taken)
            raise
        return taken

    async def give_back(self, taken: Iterable[Portion]) -> None:
        """Of a request that was not computed after all."""
        for one in taken:
            await to_its_end(self.buckets.take(one.key, -one.amount, one.rate, one.per_minute, inf))

    async def charge(self, tenant: Tenant, model: str, model_quota: Quota, output_tokens: int) -> None:
        """Take what was generated; the bucket may go below empty, which later requests wait for.

        A client that leaves at the last token, while a bucket in Redis is asked, is charged all the same.
        """
        quotas = ((who, quota.tokens_per_minute) for who, quota in _quotas(tenant, model, model_quota))
        charged = [(who, per_minute) for who, per_minute in quotas if per_minute is not None]
        if charged and output_tokens:
            await to_its_end(self._charge(charged, output_tokens))

    async def _charge(self, charged: list[tuple[str, float]], output_tokens: int) -> None:
        for who, per_minute in charged:
            await self.buckets.take(f"{who}:tokens", output_tokens, per_minute / _MINUTE_S, per_minute, inf)

    async def _take(self, who: str, what: str, portion: Portion, headers: MutableMapping[str, str]) -> float:
        per_minute, rate = portion.per_minute, portion.rate
        wait, full_s = await self.buckets.take(portion.key, portion.amount, rate, per_minute, self._longest_s)
        headers[f"x-ratelimit-limit-{what}"] = f"{per_minute:.0f}"
        headers[f"x-ratelimit-remaining-{what}"] = str(floor(max(per_minute - full_s * rate, 0.0) + _ROUNDING))
        headers[f"x-ratelimit-reset-{what}"] = f"{full_s:.3f}s"
        if wait > self._longest_s:
            raise RateLimitedError(who, what, per_minute, wait - self._longest_s)
        return wait


def _quotas(tenant: Tenant, model: str, model_quota: Quota) -> Iterator[tuple[str, Quota]]:
    if not tenant.anonymous:
        yield f"tenant {tenant.name}", tenant.quota
    yield _of_model(model), model_quota


def _portions(who: str, quota: Quota, prompt_tokens: int) -> Iterator[tuple[str, Portion]]:
    """A prompt larger than a minute's worth would never fit; it takes the whole minute instead."""
    asked = ("requests", quota.requests_per_minute, 1), ("tokens", quota.tokens_per_minute, prompt_tokens)
    for what, per_minute, amount in asked:
        if per_minute is not None:
            yield what, Portion(f"{who}:{what}", min(amount, per_minute), per_minute)


def _of_model(model: str) -> str:
    return f"model {model}"
