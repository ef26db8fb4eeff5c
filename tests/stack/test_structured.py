"""Structured output and calls of tools through a whole stack: streamed or not, whatever is killed, the same output."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stack.launch import manifests, running
from stack.traffic import until_empty

from aegaeon_cli.demo.stack import Stack

MODELS = ("llama", "mistral", "qwen2", "qwen3")
SCHEMA = {
    "type": "object",
    "properties": {
        "rows": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]{4,8}$"},
            "minItems": 8,
            "maxItems": 10,
        }
    },
    "required": ["rows"],
    "additionalProperties": False,
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "rows", "schema": SCHEMA}}}
TOOL = {"type": "function", "function": {"name": "put", "parameters": SCHEMA}}
CALL = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
Job = tuple[str, int]
JOBS: list[Job] = [(model, seed) for model in MODELS for seed in range(2)]


@pytest.fixture(scope="module")
def stack(four_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("models")
    models = {name: knowing_tools(model, folder / name) for name, model in four_models.items()}
    with running(manifests(models, prefill=1, decode=2, device="2Mi", policy="paper")) as up:
        yield up


def knowing_tools(model: Path, folder: Path) -> Path:
    """A copy whose chat template has them."""
    shutil.copytree(model, folder)
    for file in folder.glob("chat_template.jinja"):
        file.write_text("{{ tools | tojson if tools else '' }}" + file.read_text())
    return folder


def asked(job: Job) -> dict[str, Any]:
    model, seed = job
    messages = [{"role": "user", "content": "Rows, please."}]
    wanted = CALL if seed % 2 else FORMAT
    return {"model": model, "messages": messages, "seed": seed, "temperature": 0.7, **wanted}


async def whole(client: Any, job: Job) -> str:
    answer = await client.chat.completions.create(**asked(job), max_tokens=1500)
    [choice] = answer.choices
    if job[1] % 2:
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls
        assert call.function.name == "put"
        return str(call.function.arguments)
    assert choice.finish_reason == "stop"
    return str(choice.message.content)


async def streamed(client: Any, job: Job, at_piece: asyncio.Event) -> str:
    pieces = []
    async for chunk in await client.chat.completions.create(**asked(job), max_tokens=1500, stream=True):
        delta = chunk.choices[0].delta
        [call] = delta.tool_calls or [None]
        pieces.append(delta.content or "" if call is None else call.function.arguments)
        if len(pieces) == 8:
            at_piece.set()
    return "".join(pieces)


def check(text: str) -> None:
    rows = json.loads(text)["rows"]
    assert 8 <= len(rows) <= 10
    assert all(4 <= len(row) <= 8 and row.isalpha() and row.islower() for row in rows)


async def test_outputs_are_the_same_streamed_and_when_engines_are_killed(stack: Stack, client: Any) -> None:
    expected = [await whole(client, job) for job in JOBS]
    for text in expected:
        check(text)
    assert await asyncio.gather(*(streamed(client, job, asyncio.Event()) for job in JOBS)) == expected
    for victim in ("decode-0", "prefill-0", "scheduler"):
        begun = asyncio.Event()
        answers = asyncio.gather(*(streamed(client, job, begun) for job in JOBS))
        await begun.wait()
        stack.kill(victim)
        assert await answers == expected
    await until_empty(stack)


async def test_several_choices_of_one_request_follow_one_schema(client: Any) -> None:
    answer = await client.chat.completions.create(**asked(JOBS[0]), max_tokens=1500, n=3)
    texts = [choice.message.content for choice in answer.choices]
    for text in texts:
        check(text)
    assert len(set(texts)) == 3
