"""Attacks by what a request says: parameters at their extremes, and bodies that cost more than they should."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

from attacks.stranger import CHAT, COMPLETIONS, Stranger, chat

TINY = 1e-40
POISON: tuple[dict[str, Any], ...] = (
    {"temperature": 1, "repetition_penalty": TINY},
    {"temperature": 1e-38},
    {"temperature": 1e-300, "top_p": 1e-300},
    {"temperature": 2, "top_p": 1e-38, "top_k": 2**31 - 1},
    {"min_p": 1, "temperature": 2},
    {"repetition_penalty": 10, "presence_penalty": -2, "frequency_penalty": -2},
    {"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 1e-30},
    {"logit_bias": {str(token): -100 for token in range(2048)}},
    {"logit_bias": {str(token): 100 for token in range(2048)}, "temperature": 1e-30},
    {"seed": -(2**63)},
    {"seed": 2**64 - 1, "top_k": -1},
    {"min_tokens": 8, "stop_token_ids": list(range(128)), "logprobs": True, "top_logprobs": 20},
    {"temperature": -0.0, "min_p": 1e-45},
    {"max_tokens": 2**31 - 1},
    {"min_tokens": 2**31 - 1},
    {"temperature": 1e400},
    {"n": 0},
)


async def ordinary(one: Stranger) -> None:
    """No attack: a neighbour's short chats, one after the other. What fails beside it is the harness or the machine."""
    await one.ready()
    while one.going:
        await one.post(chat(one.target.shared))
        await one.pause(10)


async def nan_logits(one: Stranger) -> None:
    """Four clients at a time whose penalty makes every logit infinite or not a number."""

    async def client(_: int) -> None:
        while one.going:
            await one.post(chat(one.target.shared, temperature=1, repetition_penalty=TINY))
            await one.pause(4)

    await one.ready()
    await one.many(4, client)


async def sampling_extremes(one: Stranger) -> None:
    """Every parameter at the ends of its range, and a little beyond."""
    await one.ready()
    for changes in one.cycle(POISON):
        await one.post(json.dumps(chat(one.target.shared, **changes)).replace("Infinity", "1e400").encode())
        await one.pause(4)


async def logit_bias_entries(one: Stranger) -> None:
    """100,000 of them."""
    inside = json.dumps(chat(one.target.shared, logit_bias={str(i % 2048): 1 for i in range(100_000)})).encode()
    beyond = json.dumps(chat(one.target.shared, logit_bias={str(i): 1 for i in range(100_000)})).encode()
    await one.ready()
    await _again(one, [(beyond, CHAT), (inside, CHAT)], 20)


async def choices(one: Stranger) -> None:
    """n = 128, and 128 prompts, one after the other: what engines compute is within a quota, and shared."""
    many = {"model": one.target.shared, "prompt": ["a"] * 128, "max_tokens": 2}
    await one.ready()
    while one.going:
        await one.post(chat(one.target.shared, n=128, max_tokens=2))
        await one.pause(40)
        await one.post(many, COMPLETIONS)
        await one.pause(40)


async def stop_strings(one: Stranger) -> None:
    """The most and longest that are taken, each of which the output may begin."""
    stops = [" " * (497 + i) + "x" for i in range(15)]
    body = chat(one.target.shared, stop=stops, max_tokens=64, ignore_eos=True, logit_bias={"3": 50})
    await one.ready()
    while one.going:
        await one.post(body)
        await one.pause(10)


async def cancel_waves(one: Stranger) -> None:
    """Six streams at once that are left at their first token, again and again: few, as engines' time is shared."""
    body = chat(one.target.shared, max_tokens=200, ignore_eos=True)
    await one.ready()
    while one.going:
        await one.many(6, lambda _: one.leave_after_first_token(body))
        await one.pause(25)


async def wrong_items(one: Stranger) -> None:
    """2 MB in which each of a million messages is wrong, for a model that there is not, without a key."""
    body = b'{"model":"nope","messages":[' + b",".join([b"0"] * 1_000_000) + b"]}"
    await one.ready()
    await _again(one, [(body, CHAT)], 50, key="")


async def gzip_bomb(one: Stranger) -> None:
    """A few kilobytes that are 16 MB, and 10 GB compressed twice over."""
    wrong = b'{"model":"nope","messages":[' + b",".join([b"0"] * 1_000_000) + b"]}"
    bodies = [gzip.compress(wrong), gzip.compress(b" " * (15 << 20)), gzip.compress(b" " * (200 << 20))]
    headers = {"Content-Encoding": "gzip"}
    await one.ready()
    for body in one.cycle(bodies):
        await one.post(body, headers=headers, key="")
        await one.post(body, headers=headers)
        await one.pause(25)


async def long_prompt(one: Stranger) -> None:
    """7 MB of text, as a prompt and as a message."""
    text = "lorem ipsum dolor sit amet " * 260_000
    prompt = json.dumps({"model": one.target.shared, "prompt": text}).encode()
    message = json.dumps(chat(one.target.shared, messages=[{"role": "user", "content": text}])).encode()
    await one.ready()
    await _again(one, [(prompt, COMPLETIONS), (message, CHAT)], 50)


async def one_long_word(one: Stranger) -> None:
    """Without a blank to cut at: what merging is slowest for."""
    sizes = (20_000, 200_000, 2_000_000)
    bodies = [json.dumps({"model": one.target.shared, "prompt": "a" * size}).encode() for size in sizes]
    await one.ready()
    await _again(one, [(body, COMPLETIONS) for body in bodies], 50)


async def many_messages(one: Stranger) -> None:
    """200,000 of them."""
    messages = [{"role": "user", "content": "x"}] * 200_000
    await one.ready()
    await _again(one, [(json.dumps(chat(one.target.shared, messages=messages)).encode(), CHAT)], 50)


async def many_parts(one: Stranger) -> None:
    """200,000 parts of one message."""
    parts = [{"type": "text", "text": "x"}] * 200_000
    body = json.dumps(chat(one.target.shared, messages=[{"role": "user", "content": parts}])).encode()
    await one.ready()
    await _again(one, [(body, CHAT)], 50)


async def many_token_ids(one: Stranger) -> None:
    """A million, in one list and in a list of lists."""
    ids = b",".join([b"7"] * 1_000_000)
    flat = b'{"model":"%s","prompt":[%s]}' % (one.target.shared.encode(), ids)
    nested = b'{"model":"%s","prompt":[%s]}' % (one.target.shared.encode(), b",".join([b"[7]"] * 500_000))
    await one.ready()
    await _again(one, [(flat, COMPLETIONS), (nested, COMPLETIONS)], 50)


async def deep_nesting(one: Stranger) -> None:
    """Brackets a million deep, and many unknown keys."""
    deep = b'{"model":"x","messages":' + b"[" * 1_000_000
    keys = json.dumps({f"key{i}": i for i in range(300_000)}).encode()
    same = b'{"model":"x",' + b",".join([b'"metadata":{"a":"b"}'] * 300_000) + b"}"
    await one.ready()
    await _again(one, [(deep, CHAT), (keys, CHAT), (same, CHAT)], 50)


async def odd_encodings(one: Stranger) -> None:
    """Content encodings that are not what they say, and content types that are not JSON."""
    good = json.dumps(chat(one.target.shared)).encode()
    wrong = [{"Content-Encoding": name} for name in ("gzip", "deflate", "br", "zstd", "identity", "gzip, gzip", "\x00")]
    kinds = [{"Content-Type": name} for name in ("text/plain", "multipart/form-data; boundary=x", "application/xml")]
    await one.ready()
    for headers in one.cycle([*wrong[:-1], *kinds, {"Content-Type": "application/json; charset=utf-32"}]):
        await one.post(good, headers=headers)
        await one.post(zlib.compress(good)[:-5], headers=headers)
        await one.pause(5)


async def odd_json(one: Stranger) -> None:
    """Bytes that are no UTF-8, numbers without end, surrogates, NUL."""
    bodies = [
        b"\xff\xfe{}",
        b'{"model":"' + b"9" * 100_000 + b'"}',
        b'{"model":"x","max_tokens":' + b"9" * 100_000 + b"}",
        b'{"model":"x","temperature":1e' + b"9" * 1000 + b"}",
        b'{"model":"%s","prompt":"\\ud800"}' % one.target.shared.encode(),
        b'{"model":"%s","prompt":"\\u0000\\u202e"}' % one.target.shared.encode(),
        b'{"model":"\\u0000"}',
        b"null",
        b"",
    ]
    await one.ready()
    await _again(one, [(body, path) for body in bodies for path in (CHAT, COMPLETIONS)], 3)


async def _again(one: Stranger, bodies: list[tuple[bytes, str]], pause: float, key: str | None = None) -> None:
    for body, path in one.cycle(bodies):
        await one.post(body, path, key=key)
        await one.pause(pause)
