"""The environments of the images, without the images: made from their locks, and from what slim.sh leaves of them.

`make test-image-environments` makes them and says where they are; each test is skipped without its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from otlp_receiver import otlp_receiver
from stack.pods import MEMORY

from aegaeon_native import _core

REPOSITORY = Path(__file__).parents[2]
_STAGES = {"control": "control-code", "engine": "engine-code", "engine-vllm": "engine-code"}
# What no process of the image runs: `aegaeon up` alone starts processes itself, and an engine has one backend.
_NOT_STARTED = {
    "control": ("aegaeon_operator/podrunner",),
    "engine": ("aegaeon_sidecar/backends/vllm",),
    "engine-vllm": tuple(  # vLLM for CPUs: what torch and Triton compute on GPUs
        f"aegaeon_sidecar/backends/{module}" for module in ("torch/paged", "torch/decodes", "fused_draws")
    ),
}
START_S = 120


ENVIRONMENTS = os.environ.get("IMAGE_ENVIRONMENTS")
pytestmark = pytest.mark.skipif(not ENVIRONMENTS, reason="make test-image-environments makes the images' environments")


def python_of(image: str) -> Path:
    return Path(str(ENVIRONMENTS)) / image / "bin/python3"


@pytest.fixture
def code(tmp_path: Path) -> Callable[[str], Path]:
    """The packages that the Containerfile copies into an image and no other, and their metadata."""

    def copied(image: str) -> Path:
        stage = (REPOSITORY / "Containerfile").read_text().split(f"AS {_STAGES[image]}\n")[1].split("FROM ")[0]
        for source, name in re.findall(r"^COPY (\S+) /code/(\S+)$", stage, re.MULTILINE):
            leave_out = shutil.ignore_patterns("__pycache__", "_compiled")
            shutil.copytree(REPOSITORY / source, tmp_path / image / name, ignore=leave_out)
        metadata = (REPOSITORY / "containers/metadata.sh", REPOSITORY / "pyproject.toml", tmp_path / image)
        subprocess.run(["sh", *metadata], check=True)
        if image != "control":
            shutil.copy(_core.__file__, tmp_path / image / "aegaeon_native")
        return tmp_path / image

    return copied


@pytest.mark.parametrize("image", _STAGES)
def test_every_import_of_its_packages_works(code: Callable[[str], Path], image: str) -> None:
    command: list[str | Path] = [python_of(image), REPOSITORY / "tests/install/imports.py", code(image)]
    command += _NOT_STARTED[image]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout


@asynccontextmanager
async def process(python: Path, code: Path, module: str, config: dict[str, Any], ready: str) -> AsyncIterator[str]:
    """A process of the image with this configuration, until its log says that it is ready."""
    file = code / f"{module}.json"
    file.write_text(json.dumps(config))
    started = await asyncio.create_subprocess_exec(
        *(python, "-m", module, "--config", file),
        env=os.environ | {"PYTHONPATH": str(code)},
        stderr=asyncio.subprocess.PIPE,
    )
    assert started.stderr is not None
    said = ""
    try:
        async with asyncio.timeout(START_S):
            while not re.search(ready, said):
                line = (await started.stderr.readline()).decode()
                assert line, f"{module} ended:\n{said}"
                said += line
        yield said
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


@pytest.fixture
def segments() -> Iterator[Path]:
    """Of an engine: on a tmpfs."""
    with tempfile.TemporaryDirectory(prefix="aegaeon-images-", dir="/dev/shm") as folder:
        yield Path(folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_scheduler_and_gateway_start_with_every_optional_setting(
    code: Callable[[str], Path], sockets: Path
) -> None:
    """Tracing, an access log, batches in S3, quotas in a Redis with TLS: each imports what it needs late."""
    python, folder, scheduler = python_of("control"), code("control"), f"unix:{sockets}/scheduler.sock"
    authority = shutil.copy("/etc/ssl/certs/ca-certificates.crt", folder / "authorities.pem")
    (folder / "password").write_text("secret")
    (folder / "keys").write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
    async with otlp_receiver() as receiver:
        traced = {"otlp_endpoint": receiver.endpoint}
        pool = {"listen": scheduler, "metrics_listen": f"127.0.0.1:{free_port()}", "models": [], **traced}
        gateway = {
            "name": "gw",
            "listen": "127.0.0.1:0",
            "scheduler": scheduler,
            "sink": f"unix:{sockets}/sink.sock",
            "redis": "rediss://127.0.0.1:1/0",
            "redis_ca_file": str(authority),
            "redis_password_file": str(folder / "password"),
            "access_log": True,
            "trace_ratio": 1.0,
            **traced,
            "batches": {
                "s3": {"bucket": "night", "endpoint": "http://127.0.0.1:1", "credentials_file": str(folder / "keys")}
            },
        }
        async with (
            process(python, folder, "aegaeon_scheduler", pool, r"serv|listen"),
            process(python, folder, "aegaeon_gateway", gateway, r"listening on http://"),
        ):
            pass


@pytest.mark.parametrize(("image", "backend"), [("engine", "torch"), ("engine-vllm", "vllm")])
async def test_an_engine_serves_with_every_optional_setting(
    code: Callable[[str], Path],
    sockets: Path,
    segments: Path,
    tiny_models: dict[str, Path],
    image: str,
    backend: str,
) -> None:
    """A disk tier, adapters, tracing, metrics; the other processes are of the control image."""
    control, engine, folder = python_of("control"), python_of(image), code(image)
    scheduler, port = f"unix:{sockets}/scheduler.sock", free_port()
    async with otlp_receiver() as receiver:
        traced = {"otlp_endpoint": receiver.endpoint}
        model = {"name": "m", "source": {"directory": str(tiny_models["mistral"])}, "ttft_s": 5, "tbt_s": 0.2}
        gateway = {"name": "gw", "listen": f"127.0.0.1:{port}", "scheduler": scheduler, "trace_ratio": 1.0, **traced}
        sidecar = {
            "instance": "engine-0",
            "node": "n",
            "role": "unified",
            "scheduler": scheduler,
            "backend": backend,
            "memory": MEMORY | {"device_bytes": 64 << 20},
            "adapters": {"device_bytes": 8 << 20},
            "disk": {"folder": str(folder / "disk")},
            "segments": str(segments),
            "metrics_listen": f"127.0.0.1:{free_port()}",
        }
        async with (
            process(
                control,
                code("control"),
                "aegaeon_scheduler",
                {"listen": scheduler, "models": [model], **traced},
                "serving",
            ),
            process(
                control,
                folder.parent / "control",
                "aegaeon_gateway",
                gateway | {"sink": f"unix:{sockets}/sink.sock"},
                "listening on",
            ),
            process(engine, folder, "aegaeon_sidecar", sidecar, "attached"),
            aiohttp.ClientSession() as session,
        ):
            body = {"model": "m", "prompt": "Hello", "max_tokens": 3}
            async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                assert (await answer.json())["usage"]["completion_tokens"] > 0
