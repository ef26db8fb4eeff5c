"""Quotas of tenants and models: a request waits a bounded time for its turn, or is refused at once with Retry-After.

Requests are counted where they come. Tokens are reserved by an estimate, counted as they are served, and what was not
needed is given back; so an answer that is longer than the estimate waits for more in the middle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from math import ceil, floor, inf

from aegaeon_gateway.errors import PromptExceedsQuotaError, RateLimitedError
from aegaeon_gateway.tenancy.buckets import Counting
from aegaeon_gateway.tenancy.charge import Charge, Quotas, TokenQuota
from aegaeon_gateway.tenancy.model import Quota, Tenant
from aegaeon_gateway.tenancy.windows import SPAN_S
from aegaeon_gateway.uncancelled import to_its_end

_MINUTE_S = 60.0
_ROUNDING = 1e-6  # a bucket of 10 from which 1 was taken has 8.999999999
_POLL_S = 1.0
_FIRST_MEAN = 128.0
"""output tokens of a choice, of a model of which no answer was seen"""
_NEWEST = 0.1
"""what an answer counts in the mean of its model"""


@dataclass(frozen=True, slots=True)
class Portion:
    """The part of one bucket that a request took."""

    key: str
    amount: float
    per_minute: float

    @property
    def rate(self) -> float:
        """The rate of its bucket, per second."""
        return self.per_minute / _MINUTE_S


class Limits:
    """`admit` a request, which is charged by what is returned. Buckets hold what is allowed in a minute."""

    def __init__(self, counting: Counting, longest_s: float) -> None:
        """`longest_s`: how long a request may wait for its quota, seconds."""
        self.buckets = counting.buckets
        self.windows = counting.windows
        self._longest_s = longest_s
        self._means: dict[str, float] = {}

    def expected(self, model: str, most: Iterable[int], choices: int) -> float:
        """Output tokens of a request: `choices` of each prompt, whose answers have so many tokens at `most`."""
        mean = self._means.get(model, _FIRST_MEAN)
        return choices * sum(min(tokens, mean) for tokens in most)

    def answered(self, model: str, tokens: int, choices: int) -> None:
        """Note the output of a request of the model, by which later ones are estimated."""
        mean = self._means.get(model, _FIRST_MEAN)
        self._means[model] = mean + _NEWEST * (tokens / choices - mean)

    async def admit(
        self,
        tenant: Tenant,
        model: str,
        model_quota: Quota,
        prompt_tokens: int,
        output_tokens: float,
        headers: MutableMapping[str, str],
    ) -> Charge:
        """Take one request and its prompt and reserve its expected output, waiting for all of it.

        Raises RateLimitedError when that would take too long, PromptExceedsQuotaError when it would never be. Then, and
        where its client leaves meanwhile, all is given back. What is left of the tenant's own quotas is put into
        `headers`; a model's say how much others ask of it.
        """
        until = time.monotonic() + self._longest_s
        quotas = list(_quotas(tenant, model, model_quota))
        tokens = [
            TokenQuota(who, f"{who}:tokens", quota.tokens_per_minute)
            for who, quota in quotas
            if quota.tokens_per_minute
        ]
        for token_quota in tokens:
            if prompt_tokens > token_quota.per_minute:
                raise PromptExceedsQuotaError(token_quota.who, token_quota.per_minute, prompt_tokens)
        taken = list[Portion]()
        shown = {f"tenant {tenant.name}": headers}
        try:
            await self._take_requests(quotas, taken, shown)
            charge = Charge(Quotas(self.windows, tokens), self._giver(taken))
            await self._reserve(charge, tokens, prompt_tokens, output_tokens, until, shown)
        except BaseException:
            await self._give_back(taken)
            raise
        return charge

    async def _take_requests(
        self, quotas: Iterable[tuple[str, Quota]], taken: list[Portion], shown: dict[str, MutableMapping[str, str]]
    ) -> None:
        """Raises RateLimitedError."""
        wait = 0.0
        for who, quota in quotas:
            if (per_minute := quota.requests_per_minute) is not None:
                portion = Portion(f"{who}:requests", 1, per_minute)
                wait = max(wait, await self._take(who, portion, shown.get(who, {})))
                taken.append(portion)
        if wait > 0:
            await asyncio.sleep(wait)  # the quota's own pace

    async def _take(self, who: str, portion: Portion, headers: MutableMapping[str, str]) -> float:
        per_minute, rate = portion.per_minute, portion.rate
        wait, full_s = await self.buckets.take(portion.key, portion.amount, rate, per_minute, self._longest_s)
        _show(headers, "requests", per_minute, per_minute - full_s * rate, full_s)
        if wait > self._longest_s:
            raise RateLimitedError(who, "requests", per_minute, wait - self._longest_s)
        return wait

    async def _reserve(
        self,
        charge: Charge,
        tokens: list[TokenQuota],
        prompt_tokens: int,
        output_tokens: float,
        until: float,
        shown: dict[str, MutableMapping[str, str]],
    ) -> None:
        """Raises RateLimitedError."""
        if not tokens:
            return
        estimate = min(prompt_tokens + ceil(output_tokens), *(floor(quota.per_minute) for quota in tokens))
        estimate = max(estimate, prompt_tokens)
        while True:
            lacking, wait_s, rooms = await charge.reserve(estimate)
            for quota, room in zip(tokens, rooms, strict=False):
                _show(shown.get(quota.who, {}), "tokens", quota.per_minute, room.left, room.full_s)
            if lacking is None:
                break
            if time.monotonic() + wait_s > until:
                raise RateLimitedError(lacking.who, "tokens", lacking.per_minute, min(wait_s, SPAN_S))
            await asyncio.sleep(min(wait_s, _POLL_S))
        charge.hold_prompt(prompt_tokens)

    def _giver(self, taken: list[Portion]) -> Callable[[], Awaitable[None]]:
        async def give_back() -> None:
            await self._give_back(taken)

        return give_back

    async def _give_back(self, taken: Iterable[Portion]) -> None:
        """Give back the portions of a request that was not computed."""
        for portion in taken:
            await to_its_end(self.buckets.take(portion.key, -portion.amount, portion.rate, portion.per_minute, inf))


def _show(headers: MutableMapping[str, str], what: str, per_minute: float, left: float, full_s: float) -> None:
    headers[f"x-ratelimit-limit-{what}"] = f"{per_minute:.0f}"
    headers[f"x-ratelimit-remaining-{what}"] = str(floor(max(left, 0.0) + _ROUNDING))
    headers[f"x-ratelimit-reset-{what}"] = f"{full_s:.3f}s"


def _quotas(tenant: Tenant, model: str, model_quota: Quota) -> Iterator[tuple[str, Quota]]:
    if not tenant.anonymous:
        yield f"tenant {tenant.name}", tenant.quota
    yield f"model {model}", model_quota
