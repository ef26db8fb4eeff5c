"""Clients that people use, unchanged, against a real stack. Each runs in their environment (`make test-clients`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.taught import teach
from stack.launch import manifests, running

from aegaeon_cli.demo.stack import Stack

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = os.environ.get("CLIENTS_PYTHON", "")
TIMEOUT_S = 240
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "ANONYMIZED_TELEMETRY": "False",
}

pytestmark = pytest.mark.skipif(not PYTHON, reason="no environment of clients: make test-clients")


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model that has learnt the conversation."""
    directory = tmp_path_factory.mktemp("taught")
    teach(directory)
    return directory


@pytest.fixture(scope="session")
def stack(taught: Path, embedder: Path) -> Iterator[Stack]:
    with running(manifests({"taught": taught, "embed": embedder}, engines=1)) as stack:
        yield stack


@pytest.mark.parametrize("program", sorted(path.stem for path in PROGRAMS.glob("*.py")))
def test_a_client_works_unchanged(stack: Stack, taught: Path, program: str) -> None:
    url = f"{stack.state.url}/v1"
    command = [PYTHON, str(PROGRAMS / f"{program}.py"), url, "taught"]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        command, input=str(taught), capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
