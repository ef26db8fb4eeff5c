"""Models whose files are broken, beside others that are served: real processes."""

from __future__ import annotations

import asyncio
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
    single_file, sharded = make_model("qwen2"), make_model("qwen2", shard="40KB")
    made = {name: base / name for name in BROKEN}
    for name, directory in made.items():
        shutil.copytree(sharded if name.endswith("-shard") else single_file, directory)
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


async def ask(api: aiohttp.ClientSession, model: str) -> tuple[int, dict[str, Any]]:
    body = {"model": model, "prompt": "The quick brown fox", "max_tokens": 4}
    async with api.post("/v1/completions", json=body) as answer:
        return answer.status, await answer.json()


async def failure_of(api: aiohttp.ClientSession, model: str) -> str:
    """The reason that the gateway shows: the stack is up when its scheduler knows it, which is a moment earlier."""
    async with asyncio.timeout(10):
        while True:
            async with api.get(f"/v1/models/{model}") as answer:
                state = (await answer.json())["aegaeon"]
            if state["phase"] == "failed":
                return str(state["reason"])


async def test_a_broken_model_is_failed_with_its_reason_in_every_view(stack: Stack, api: aiohttp.ClientSession) -> None:
    reasons = {model: await failure_of(api, model) for model in BROKEN}
    shown = await asyncio.to_thread(top, stack)
    pods = [line for line in stack.log().splitlines() if " | " in line]
    for model, reason in reasons.items():
        assert all(word in reason for word in BROKEN[model]), reason
        assert f"failed: {reason}" in shown
        assert any(model in line and reason.removeprefix(f"{model}: ") in line for line in pods)
        status, body = await ask(api, model)
        expected = (404, "model_unsupported") if model in UNSUPPORTED else (503, "model_failed")
        assert (status, body["error"]["code"]) == expected
        assert reason in body["error"]["message"]


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
    status, body = await ask(api, name)
    assert status == 200
    assert body["usage"]["completion_tokens"] > 0
