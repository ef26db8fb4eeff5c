"""Codex and Claude Code, unchanged, against a stack: calls, a file written, an image read, and a turn after each.

`make test-agents`. The models are parrots, so what is tested is what the programs send, and what they can do with it.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from clients.parrots import Call, teach
from clients.tap import tapped
from stack.launch import manifests, running

from aegaeon_cli.demo.stack import Stack

AGENTS = os.environ.get("AGENTS", "")
BIN = Path(AGENTS) / "node_modules/.bin"
TIMEOUT_S = 150
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
QUIET = {
    # what the programs document against requests to anybody else
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "IS_SANDBOX": "1",
}
CODEX_CONFIG = """\
model = "codex"
model_provider = "aegaeon"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.aegaeon]
name = "Aegaeon"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
BACKENDS = [
    "torch",
    pytest.param(
        "vllm",
        marks=pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM in this environment"),
    ),
]

pytestmark = [
    pytest.mark.skipif(not (AGENTS and (BIN / "codex").exists()), reason="no agents from npm: make test-agents"),
    pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine"),
]


def codex_calls(folder: Path) -> dict[str, Call]:
    return {
        "run": ("exec_command", {"cmd": "echo hi"}),
        "write": ("exec_command", {"cmd": "echo hello > hello.txt"}),
        "look": ("view_image", {"path": "dot.png"}),
    }


def claude_calls(folder: Path) -> dict[str, Call]:
    return {
        "run": ("Bash", {"command": "echo hi", "description": "hi"}),
        "write": ("Write", {"file_path": f"{folder}/hello.txt", "content": "hello"}),
        "look": ("Read", {"file_path": f"{folder}/dot.png"}),
    }


def codex(url: str, home: Path, prompt: str, *, first: bool) -> list[str]:
    (home / ".codex").mkdir(exist_ok=True)
    (home / ".codex/config.toml").write_text(CODEX_CONFIG.format(url=url))
    resumed = [] if first else ["resume", "--last"]
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json"]
    return [str(BIN / "codex"), "exec", *resumed, *flags, prompt]


def claude(url: str, home: Path, prompt: str, *, first: bool) -> list[str]:
    resumed = [] if first else ["--continue"]
    flags = ["--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"]
    return [str(BIN / "claude"), *resumed, "-p", prompt, *flags]


@dataclass(frozen=True)
class Agent:
    """How a program is called. `calls`: of its tools, one a lesson."""

    command: Callable[..., list[str]]
    calls: Callable[[Path], dict[str, Call]]


PROGRAMS = {"claude": Agent(claude, claude_calls), "codex": Agent(codex, codex_calls)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each program works: a short path, since it is part of what a model learns."""
    made = {}
    for name in PROGRAMS:
        made[name] = tmp_path_factory.mktemp(name)
        (made[name] / "dot.png").write_bytes(base64.b64decode(PNG))
    return made


@pytest.fixture(scope="module")
def models(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each program the model that calls its tools."""
    made = {}
    for name, agent in PROGRAMS.items():
        made[name] = tmp_path_factory.mktemp(f"{name}-model")
        teach(made[name], agent.calls(folders[name]))
    return made


@pytest.fixture(scope="module", params=BACKENDS)
def stack(request: pytest.FixtureRequest, models: dict[str, Path]) -> Iterator[Stack]:
    with running(manifests(models, engines=1, device="64Mi", backend=request.param)) as stack:
        yield stack


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_an_agent_calls_writes_and_looks_in_one_conversation(
    stack: Stack, folders: dict[str, Path], program: str, tmp_path: Path
) -> None:
    folder = folders[program]
    (folder / "hello.txt").unlink(missing_ok=True)
    with tapped(stack.state.url) as tap:
        for number, lesson in enumerate(("run", "write", "look", "end")):
            command = PROGRAMS[program].command(tap.url, tmp_path, f"LESSON {lesson}", first=number == 0)
            done = subprocess.run(
                command, cwd=folder, env=environment(tap.url, tmp_path, program), capture_output=True, text=True,
                timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            report = f"{lesson}: {done.stdout[-4000:]}\n{done.stderr[-2000:]}\n{tap.refused}"
            assert done.returncode == 0, report
            assert "All done." in done.stdout, report
    assert (folder / "hello.txt").read_text().strip() == "hello"
    assert len(tap.answers) >= 7, "a call and what follows it in each of three turns, and a turn without"
    assert tap.refused == []


def environment(url: str, home: Path, program: str) -> dict[str, str]:
    models = dict.fromkeys(("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"), program)
    gateway = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "any"}
    return {**os.environ, **QUIET, **models, **gateway, "HOME": str(home), "CODEX_HOME": str(home / ".codex")}
