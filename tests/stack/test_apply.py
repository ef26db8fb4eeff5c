"""`aegaeon apply`: a running stack gets other models and tenants, or an error names what needs a restart."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from stack.launch import manifests, running
from stack.traffic import PROMPTS, stream

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.processes import command_line
from aegaeon_cli.demo.stack import Stack
from aegaeon_native.leases import locked


@pytest.fixture(scope="module")
def stack(four_models: dict[str, Path]) -> Iterator[Stack]:
    with running(of(four_models, "llama", "qwen3")) as up:
        yield up


def of(models: dict[str, Path], *names: str, engines: int = 1) -> str:
    return manifests({name: models[name] for name in names}, engines=engines)


def apply(stack: Stack, folder: Path, text: str) -> tuple[int, str]:
    """Exit status and what it printed."""
    (folder / "pool.yaml").write_text(text)
    command = [sys.executable, "-c", "from aegaeon_cli.main import main; main()", "apply", "-f", str(folder)]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(stack.run_folders.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def pods(stack: Stack) -> set[int]:
    """Its processes but for a gateway's workers: to load a model is to replace them. What is gone has no command."""
    commands = {pid: command_line(pid) for pid in stack.pids()}
    return {pid for pid, command in commands.items() if command and "aegaeon_gateway.workers" not in command}


async def until(client: openai.AsyncOpenAI, *models: str) -> None:
    """Until the gateway shows these models."""
    async with asyncio.timeout(30):
        while {model.id async for model in client.models.list()} != set(models):  # noqa: ASYNC110  # see below
            await asyncio.sleep(0.05)  # another process is watched


async def test_models_are_added_and_removed_during_a_stream_and_survive_the_scheduler(
    stack: Stack, four_models: dict[str, Path], tmp_path: Path
) -> None:
    before = pods(stack)
    async with clients.async_client(stack.state.url, timeout=90) as client:
        expected = await stream(client, "qwen3", PROMPTS[0])
        streaming = asyncio.create_task(stream(client, "qwen3", PROMPTS[0]))
        status, printed = await asyncio.to_thread(apply, stack, tmp_path, of(four_models, "qwen3", "qwen2"))
        assert status == 0, printed
        assert printed.splitlines()[:2] == ["model qwen2 added", "model llama removed"]
        await until(client, "qwen3", "qwen2")
        assert await stream(client, "qwen2", PROMPTS[0])
        assert await streaming == expected
        assert pods(stack) == before
        stack.kill("scheduler")
        assert await stream(client, "qwen2", PROMPTS[0])
        await until(client, "qwen3", "qwen2")


async def test_of_two_at_once_the_second_waits(stack: Stack, four_models: dict[str, Path], tmp_path: Path) -> None:
    """Else the scheduler has the models of one, and when it starts again those of the other."""
    configured = stack.state.folder / "scheduler.json"
    before = configured.read_bytes()
    with locked(stack.state.folder):
        second = asyncio.create_task(asyncio.to_thread(apply, stack, tmp_path, of(four_models, "qwen3")))
        await asyncio.wait([second], timeout=5)
        assert (second.done(), configured.read_bytes()) == (False, before)
    status, printed = await second
    assert status == 0, printed
    assert configured.read_bytes() != before
    assert not list(stack.state.folder.glob("*.new"))
    assert (await asyncio.to_thread(apply, stack, tmp_path, of(four_models, "qwen3", "qwen2")))[0] == 0


async def test_keys_are_added_and_removed(stack: Stack, four_models: dict[str, Path], tmp_path: Path) -> None:
    def guarded(*tenants: str) -> str:
        pool, models = yaml.safe_load_all(of(four_models, "qwen3", "qwen2"))
        models["spec"]["tenants"] = [{"name": name, "keyFile": f"./{name}.key"} for name in tenants]
        return yaml.safe_dump_all([pool, models])

    async def ask(key: str) -> Any:
        async with clients.async_client(stack.state.url, key) as client:
            return await client.completions.create(model="qwen3", prompt="x", max_tokens=1)

    for name in ("red", "blue"):
        (tmp_path / f"{name}.key").write_text(f"sk-{name}")
    for tenants, known, unknown in ((("red",), "sk-red", "sk-blue"), (("blue",), "sk-blue", "sk-red")):
        assert (await asyncio.to_thread(apply, stack, tmp_path, guarded(*tenants)))[0] == 0
        async with asyncio.timeout(30):
            while True:  # the gateway looks once a second
                try:
                    await ask(unknown)
                except openai.AuthenticationError:
                    break
                await asyncio.sleep(0.1)  # another process is watched
        assert (await ask(known)).choices
    assert apply(stack, tmp_path, of(four_models, "qwen3", "qwen2"))[0] == 0


def test_changes_that_need_a_restart_are_named_and_nothing_is_changed(
    stack: Stack, four_models: dict[str, Path], tmp_path: Path
) -> None:
    status, printed = apply(stack, tmp_path, of(four_models, "qwen3", engines=2))
    assert status == 2
    assert "pod engine-1 is in the manifests and not running" in printed
    assert "nothing was changed" in printed
    bounds = "    replicas: 1\n    min: 0\n    max: 1\n"
    scaled = of(four_models, "qwen3", "qwen2").replace("    replicas: 1\n", bounds)
    status, printed = apply(stack, tmp_path, scaled)
    assert status == 2
    assert "spec.autoscaling: the pool runs with none, the manifests have unified: 0 to 1" in printed
    status, printed = apply(stack, tmp_path, of(four_models, "qwen3", "qwen2").replace("16Mi", "32Mi"))
    assert status == 2
    assert "pod engine-0: memory.device_bytes would change from 16777216 to 33554432" in printed
    status, printed = apply(stack, tmp_path, of({"qwen3": tmp_path / "nowhere"}, "qwen3"))
    assert status == 2
    assert "does not exist" in printed
