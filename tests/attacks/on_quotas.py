"""Attacks on what tenants have each for itself: quotas, asked for all at once, and prompts, which others guess."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import time

import aiohttp
from attacks.stranger import COMPLETIONS, Stranger, chat
from attacks.target import REQUESTS_A_MINUTE, TOKENS_A_MINUTE
from benchmarks.quotas import SPAN_S, Shape, Tenant, burst

SHAPES = (
    Shape(1, n=128, max_tokens=20),
    Shape(20, max_tokens=20),
    Shape(5, n=8, max_tokens=20),
    Shape(10, max_tokens=20, leaves=10),
)
SECRET_TOKENS = 512  # several slabs of KV cache
LEAST_ID, MOST_ID = 300, 900
GUESSERS: tuple[tuple[str | None, str], ...] = ((None, ""), ("", ""), (None, "neighbour"))  # keys and salts


async def token_bursts(one: Stranger) -> None:
    """A tenant with TOKENS_A_MINUTE asks in four ways at once, up to 128 choices a request."""
    tenants = [Tenant(f"shape {number}", shape) for number, shape in enumerate(SHAPES)]
    await one.ready()
    until = time.monotonic() + one.left_s
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        clients = [
            burst(session, one.target.url, tenant, one.target.metered_key, until)
            for tenant in tenants
            for _ in range(tenant.shape.at_once)
        ]
        with contextlib.suppress(TimeoutError):  # streams without quota are held
            async with asyncio.timeout(one.left_s + 1):
                await asyncio.gather(*clients)
    together = Tenant("all", SHAPES[0], got=sorted(entry for tenant in tenants for entry in tenant.got))
    one.answers["429"] += sum(tenant.refused for tenant in tenants)
    one.answers["tokens"] += together.most
    allowed = TOKENS_A_MINUTE + max(shape.max_tokens for shape in SHAPES)
    if together.most > allowed:
        one.harm.append(f"a quota of {TOKENS_A_MINUTE} gave {together.most} tokens within {SPAN_S:g} s")
    one.harm += [wrong for tenant in tenants for wrong in tenant.wrong]


async def request_bursts(one: Stranger) -> None:
    """A tenant with REQUESTS_A_MINUTE asks 40 at a time, while the Redis that counts them is slow."""
    body, served = chat(one.target.shared, max_tokens=1), 0

    async def client(_: int) -> None:
        nonlocal served
        status, _ = await one.post(body, key=one.target.paced_key)
        served += status == 200

    await one.ready()
    begun = time.monotonic()
    while one.going:
        await one.many(40, client)
        await one.pause(5)
    allowed = math.ceil(REQUESTS_A_MINUTE * (1 + (time.monotonic() - begun) / SPAN_S))
    if served > allowed:
        one.harm.append(f"a quota of {REQUESTS_A_MINUTE} requests a minute gave {served}, {allowed} at most were right")


async def prompt_guesses(one: Stranger) -> None:
    """Another tenant's prompts, guessed by one with a key, by one without, and under a salt: right ones beside wrong
    ones, and no answer shows which is which. The neighbour itself finds its own, or nothing would be shown."""
    neighbour, chance = one.target.neighbour_key, random.Random()
    rounds = own = 0
    await one.ready()
    while one.going:
        secret, wrong = ([chance.randint(LEAST_ID, MOST_ID) for _ in range(SECRET_TOKENS)] for _ in range(2))
        await _cached(one, secret, neighbour)
        for key, salt in GUESSERS:
            guesses = [await _cached(one, prompt, key, salt) for prompt in (secret, wrong)]
            if None not in guesses and guesses[0] != guesses[1]:
                one.harm.append(f"cached_tokens tells a right guess from a wrong one: {guesses}")
        own += bool(await _cached(one, secret, neighbour))
        rounds += 1
        await one.pause(5)
    one.answers["prompts found again by their own tenant"] += own
    if rounds >= 3 and not own:
        one.harm.append(f"no prompt of {rounds} was found again by its own tenant: nothing is shared, nothing shown")


async def _cached(one: Stranger, prompt: list[int], key: str | None, salt: str = "") -> int | None:
    """`cached_tokens` of the answer; None without one."""
    body = {"model": one.target.open, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    body |= {"cache_salt": salt} if salt else {}
    status, data = await one.post(body, COMPLETIONS, key=key)
    return int(json.loads(data)["usage"]["prompt_tokens_details"]["cached_tokens"]) if status == 200 else None
