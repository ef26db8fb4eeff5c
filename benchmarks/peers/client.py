"""Sends a trace to a server of OpenAI's API and notes when each piece of text arrived."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from benchmarks.peers.trace import TOKENS, Session


@dataclass(slots=True)
class Answer:
    """`pieces`: seconds since it was asked for, and the text that came then. `ended`: with all of its tokens."""

    model: str
    pieces: list[tuple[float, str]] = field(default_factory=list)
    error: str = ""
    ended: bool = False

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)


async def replay(url: str, names: dict[str, str], sessions: Sequence[Session], limit_s: float) -> list[Answer]:
    """All answers, those that were never asked for among them. `names`: what the server calls each model. What is not
    answered `limit_s` after the beginning is given up."""
    answers: list[Answer] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        began = time.monotonic()
        tasks = [asyncio.create_task(_hold(session, url, names, one, began, answers)) for one in sessions]
        _, late = await asyncio.wait(tasks, timeout=limit_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    asked = sum(len(one.models) * one.rounds for one in sessions)
    return answers + [Answer("", error="never asked for") for _ in range(asked - len(answers))]


async def _hold(
    session: aiohttp.ClientSession,
    url: str,
    names: dict[str, str],
    one: Session,
    began: float,
    answers: list[Answer],
) -> None:
    await asyncio.sleep(max(0.0, began + one.at_s - time.monotonic()))
    prompt = one.prompt
    for _ in range(one.rounds):
        found = [Answer(model) for model in one.models]
        answers += found
        await asyncio.gather(*(ask(session, url, names[each.model], prompt, each) for each in found))
        prompt = " ".join([prompt, *(each.text for each in found)])


async def ask(session: aiohttp.ClientSession, url: str, name: str, prompt: str, answer: Answer) -> None:
    """One completion, greedy, of TOKENS tokens."""
    body = {"model": name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0.0, "stream": True}
    sent = time.monotonic()
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                answer.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                return
            async for line in response.content:
                if line.startswith(b"data: {"):
                    _take(json.loads(line[6:]), time.monotonic() - sent, answer)
        answer.ended = bool(answer.pieces) and not answer.error
    except (aiohttp.ClientError, TimeoutError) as error:
        answer.error = f"{type(error).__name__}: {error}"


def _take(event: dict[str, Any], at_s: float, answer: Answer) -> None:
    if "error" in event:
        answer.error = str(event["error"])
        return
    for choice in event.get("choices") or ():
        if choice.get("text"):
            answer.pieces.append((at_s, choice["text"]))
