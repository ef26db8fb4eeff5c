"""Batches through whole stacks whose gateways die."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from stack.launch import manifests, running

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.stack import Stack

GREETING = "Good morning"


@pytest.fixture(scope="module")
def stack(four_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Prompts are computed on one engine, answers on another."""
    models = {name: four_models[name] for name in ("llama", "qwen3")}
    with running(manifests(models, prefill=1, decode=1, batches=tmp_path_factory.mktemp("batches"))) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with clients.client(stack.state.url) as client:
        yield client


def test_a_batch_goes_on_after_its_gateway_was_killed_and_answers_as_online(
    stack: Stack, client: openai.OpenAI
) -> None:
    bodies = [
        {
            "model": model,
            "messages": [{"role": "user", "content": f"{GREETING} {n}"}],
            "temperature": 0,
            "max_tokens": 16,
        }
        for n in range(4)
        for model in ("llama", "qwen3")
    ]
    online = [client.chat.completions.create(**body).choices[0].message.content for body in bodies]
    url = "/v1/chat/completions"
    lines = [{"custom_id": str(n), "method": "POST", "url": url, "body": body} for n, body in enumerate(bodies * 40)]
    data = "".join(json.dumps(line) + "\n" for line in lines)
    file = client.files.create(file=("night.jsonl", data.encode()), purpose="batch")
    batch: Any = client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h")
    before = _until(client, batch.id, lambda batch: batch.request_counts.completed > 0)
    os.kill(stack.pod("gateway"), signal.SIGKILL)
    done = _until(client, batch.id, lambda batch: batch.status == "completed")
    assert before.request_counts.completed < len(lines)
    assert done.request_counts.to_dict() == {"total": len(lines), "completed": len(lines), "failed": 0}
    output = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    assert len(output) == len(lines)
    answers = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in output}
    assert answers == {str(n): content for n, content in enumerate(online * 40)}


def _until(client: openai.OpenAI, id_: str, condition: Any) -> Any:
    """Wait for a batch, over the death of its gateway."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if condition(batch := client.batches.retrieve(id_)):
                return batch
        except (openai.APIConnectionError, openai.InternalServerError):
            pass
        time.sleep(0.05)  # the client is synchronous, and the API of batches has nothing to wait on
    raise AssertionError("the batch does not go on")
