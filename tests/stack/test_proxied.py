"""On a machine of a company: commands beside a proxy that leads nowhere, and sources by way of one that does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dead_proxy
import pytest
from stack.launch import manifests, running

from aegaeon_cli.demo.stack import Stack

COMMAND = (sys.executable, "-c", "from aegaeon_cli.main import main; main()")
CLIENT = Path(__file__).parents[2] / "examples" / "client.py"


def said(stack: Stack, *words: str) -> str:
    """What a command prints, with a proxy in its environment."""
    environment = os.environ | {"XDG_RUNTIME_DIR": str(stack.run_folders.parent)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_and_the_example_work_beside_a_dead_proxy(
    four_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_proxy.use(monkeypatch)
    text = manifests({"llama": four_models["llama"]}, engines=1)
    (tmp_path / "pool.yaml").write_text(text)
    with running(text) as stack:
        assert "llama" in said(stack, *COMMAND, "top", "--once")
        said(stack, *COMMAND, "apply", "-f", str(tmp_path))
        assert "--- llama: first token" in said(stack, sys.executable, str(CLIENT), "--url", f"{stack.state.url}/v1")
