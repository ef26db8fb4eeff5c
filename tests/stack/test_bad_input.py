"""Errors reach the client concerned, with a remedy, while serving continues: real processes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from stack.launch import CONTEXT, manifests, running

from aegaeon_cli.demo.stack import Stack

GOOD = ("good", "fine")
CHAT = "/v1/chat/completions"
BODY_BYTES = 16 << 20

# model -> what its reason must say: what is wrong and where
BROKEN = {
    "no-config": ("config.json", "missing"),
    "no-such-architecture": ("MambaForCausalLM", "LlamaForCausalLM"),
    "missing-shard": ("model-00002-of-", "missing"),
    "truncated-shard": ("model-00002-of-", "truncated"),
    "wrong-shapes": ("shape [96, 64], must be [128, 64]", "config.json"),
    "pickled": ("pytorch_model.bin", "safetensors"),
    "larger-than-an-engine": ("slabs", "device_bytes"),
}
UNSUPPORTED = ("no-such-architecture", "larger-than-an-engine")
"""no file of these is missing or damaged: an engine cannot run such a model"""


def _edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(scope="module")
def directories(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two good models, and one broken in each way."""
    base = tmp_path_factory.mktemp("models")
    whole, split = make_model("qwen2"), make_model("qwen2", shard="40KB")
    made = {name: base / name for name in BROKEN}
    for name, directory in made.items():
        shutil.copytree(split if name.endswith("-shard") else whole, directory)
    (made["no-config"] / "config.json").unlink()
    _edit_config(made["no-such-architecture"], architectures=["MambaForCausalLM"], model_type="mamba")
    second = sorted(made["missing-shard"].glob("*.safetensors"))[1]
    second.unlink()
    with (made["truncated-shard"] / second.name).open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) // 2)
    _edit_config(made["wrong-shapes"], intermediate_size=128)
    (made["pickled"] / "model.safetensors").unlink()
    torch.save({}, made["pickled"] / "pytorch_model.bin")
    made["larger-than-an-engine"] = make_model("llama", intermediate_size=8192)
    good = {"good": make_model("llama", max_position_embeddings=CONTEXT), "fine": make_model("qwen3")}
    return {**good, **made}


@pytest.fixture(scope="module")
def stack(directories: dict[str, Path]) -> Iterator[Stack]:
    with running(manifests(directories, prefill=1, decode=1, device="4Mi")) as up:
        yield up


@pytest.fixture
async def api(stack: Stack) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stack.state.url) as session:
        yield session


async def ask(api: aiohttp.ClientSession, body: Any, path: str = "/v1/completions") -> tuple[int, dict[str, Any]]:
    """Status and body of a POST; a body that is bytes goes as it is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with api.post(path, data=io.BytesIO(data), headers={"Content-Type": "application/json"}) as answer:
        return answer.status, await answer.json()


def good(**changes: Any) -> dict[str, Any]:
    return {"model": "good", "prompt": "The quick brown fox", "max_tokens": 4, **changes}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_model_is_failed_with_its_reason_in_every_view(
    stack: Stack, api: aiohttp.ClientSession, name: str
) -> None:
    state: dict[str, Any] = {}
    async with asyncio.timeout(10):  # the stack is up when its scheduler knows; its gateway is notified right after
        while state.get("phase") != "failed":
            async with api.get(f"/v1/models/{name}") as answer:
                state = (await answer.json())["aegaeon"]
    assert all(word in state["reason"] for word in BROKEN[name]), state["reason"]
    shown = await asyncio.to_thread(top, stack)
    assert f"failed: {state['reason']}" in shown
    pods = [line for line in stack.log().splitlines() if " | " in line]
    assert any(name in line and state["reason"].removeprefix(f"{name}: ") in line for line in pods)
    status, body = await ask(api, good(model=name))
    answer_of_failure = (404, "model_unsupported") if name in UNSUPPORTED else (503, "model_failed")
    assert (status, body["error"]["code"]) == answer_of_failure
    assert state["reason"] in body["error"]["message"]


def top(stack: Stack) -> str:
    command = [sys.executable, "-c", "from aegaeon_cli.main import main; main()"]
    done = subprocess.run(
        [*command, "top", "--once", "--run", stack.state.scheduler],
        env={**os.environ, "COLUMNS": "500"},
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    )
    return done.stdout


@pytest.mark.parametrize("name", GOOD)
async def test_the_other_models_are_served(api: aiohttp.ClientSession, name: str) -> None:
    status, body = await ask(api, good(model=name))
    assert status == 200
    assert body["usage"]["completion_tokens"] > 0


async def test_an_unknown_model_is_404_with_the_served_names(api: aiohttp.ClientSession) -> None:
    status, body = await ask(api, good(model="none-such"))
    assert status == 404
    assert body["error"]["code"] == "model_not_found"
    assert all(name in body["error"]["message"] for name in ("none-such", *GOOD))


@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
async def test_a_prompt_too_long_is_400_with_both_numbers(api: aiohttp.ClientSession, path: str) -> None:
    text = "x" * (CONTEXT + 500)
    if path == "/v1/completions":
        body: dict[str, Any] = {"model": "good", "prompt": [7] * (CONTEXT + 500)}
    else:
        body = {"model": "good", "messages": [{"role": "user", "content": text}]}
    status, answer = await ask(api, body, path)
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    numbers = {int(word) for word in answer["error"]["message"].replace(".", " ").split() if word.isdecimal()}
    assert CONTEXT in numbers
    assert max(numbers) >= CONTEXT + 500


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b'{"model": "good", ', None, "invalid_json"),
        (b"[]", None, "invalid_json"),
        ({"prompt": "x"}, "model", "missing_parameter"),
        ({"model": "good"}, "prompt", "missing_parameter"),
        (good(max_tokens="4"), "max_tokens", "invalid_value"),
        (good(max_tokens=0), "max_tokens", "invalid_value"),
        (good(temperature=2.5), "temperature", "invalid_value"),
        (good(top_p=1.5), "top_p", "invalid_value"),
        (good(n=0), "n", "invalid_value"),
        (good(stop=["x", 1]), "stop[1]", "invalid_value"),
        (good(prompt={"text": "x"}), "prompt", "invalid_value"),
        (good(prompt=[10**6]), "prompt", None),
        (good(logit_bias={"x": 1}), "logit_bias", "invalid_value"),
        (good(tools=[{"type": "function"}]), "tools", "unsupported_parameter"),
        (good(best_of=3), "best_of", "unsupported_parameter"),
        (good(temprature=1), "temprature", "unsupported_parameter"),
    ],
)
async def test_a_wrong_request_is_400_and_names_the_parameter(
    api: aiohttp.ClientSession, body: Any, param: str | None, code: str | None
) -> None:
    status, answer = await ask(api, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param
    assert code is None or answer["error"]["code"] == code


async def test_a_body_over_the_limit_is_413(api: aiohttp.ClientSession) -> None:
    status, answer = await ask(api, good(prompt="x" * BODY_BYTES))
    assert status == 413
    assert str(BODY_BYTES) in answer["error"]["message"]


async def test_after_all_bad_requests_the_stack_serves_as_before(api: aiohttp.ClientSession) -> None:
    status, body = await ask(api, {"model": "fine", "messages": [{"role": "user", "content": "x"}]}, CHAT)
    assert status == 200
    assert body["choices"][0]["finish_reason"] in {"stop", "length"}
