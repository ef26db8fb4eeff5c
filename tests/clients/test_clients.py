"""Clients that people use, unchanged, against a real stack. Each runs in their environment (`make test-clients`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from clients.taught import teach
from stack.launch import manifests, running

from aegaeon_cli.demo.stack import Stack

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = os.environ.get("CLIENTS_PYTHON", "")
TIMEOUT_S = 240
AT_A_TIME = 2
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "ANONYMIZED_TELEMETRY": "False",
}

Run = Future[subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(not PYTHON, reason="no environment of clients: make test-clients")


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model that has learnt the conversation."""
    directory = tmp_path_factory.mktemp("taught")
    teach(directory)
    return directory


@pytest.fixture(scope="session")
def stack(taught: Path, embedder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    kept = tmp_path_factory.mktemp("batches")
    models = {"taught": taught, "embed": embedder}
    with running(manifests(models, engines=1, batches=kept, origins=["https://chat.example.com"])) as stack:
        yield stack


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, stack: Stack, taught: Path) -> Iterator[dict[str, Run]]:
    """Of all programs whose tests were selected, some at a time: most of their seconds go to imports and waiting."""
    chosen = [item.callspec.params["program"] for item in request.session.items if isinstance(item, pytest.Function)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {program: pool.submit(run, program, stack, taught) for program in chosen}
        pool.shutdown(cancel_futures=True)


def run(program: str, stack: Stack, taught: Path) -> subprocess.CompletedProcess[str]:
    """Raises subprocess.TimeoutExpired."""
    command = [PYTHON, str(PROGRAMS / f"{program}.py"), f"{stack.state.url}/v1", "taught"]
    environment = {**os.environ, **ENVIRONMENT}
    return subprocess.run(
        command, input=str(taught), capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False
    )


@pytest.mark.parametrize("program", sorted(path.stem for path in PROGRAMS.glob("*.py")))
def test_a_client_works_unchanged(runs: dict[str, Run], program: str) -> None:
    done = runs[program].result()
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
