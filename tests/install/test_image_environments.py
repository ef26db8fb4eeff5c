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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import otlp_receiver

REPOSITORY = Path(__file__).parents[2]
_STAGES = {"control": "control-code", "engine": "engine-code", "engine-vllm": "engine-code"}
# `aegaeon up` alone starts processes itself, and it is in no image.
_NOT_STARTED = ("aegaeon_operator/podrunner",)
START_S = 120


def python_of(image: str) -> Path:
    folder = os.environ.get(f"IMAGE_{image.upper().replace('-', '_')}")
    if folder is None:
        pytest.skip("make test-image-environments makes the environments of the images")
    return Path(folder) / "bin/python3"


@pytest.fixture
def code(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The packages that the Containerfile copies into the image and no other, and their metadata."""
    stage = (REPOSITORY / "Containerfile").read_text().split(f"AS {_STAGES[request.param]}\n")[1].split("FROM ")[0]
    for source, name in re.findall(r"^COPY (\S+) /code/(\S+)$", stage, re.MULTILINE):
        shutil.copytree(REPOSITORY / source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "_compiled"))
    metadata = (REPOSITORY / "containers/metadata.sh", REPOSITORY / "pyproject.toml", tmp_path)
    subprocess.run(["sh", *metadata], check=True)
    return tmp_path


@pytest.mark.parametrize(("code", "image"), [(image, image) for image in ("control",)], indirect=["code"])
def test_every_import_of_its_packages_works(code: Path, image: str) -> None:
    command = [python_of(image), REPOSITORY / "tests/install/imports.py", code, *_NOT_STARTED]
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("code", ["control"], indirect=True)
async def test_scheduler_and_gateway_start_with_every_optional_setting(code: Path, sockets: Path) -> None:
    """Tracing, an access log, batches in S3, quotas in a Redis with TLS: each imports what it needs late."""
    python, scheduler = python_of("control"), f"unix:{sockets}/scheduler.sock"
    authority = shutil.copy("/etc/ssl/certs/ca-certificates.crt", code / "authorities.pem")
    (code / "password").write_text("secret")
    (code / "keys").write_text("[default]\naws_access_key_id = a\naws_secret_access_key = b\n")
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
            "redis_password_file": str(code / "password"),
            "access_log": True,
            "trace_ratio": 1.0,
            **traced,
            "batches": {
                "s3": {"bucket": "night", "endpoint": "http://127.0.0.1:1", "credentials_file": str(code / "keys")}
            },
        }
        async with (
            process(python, code, "aegaeon_scheduler", pool, r"serv|listen"),
            process(python, code, "aegaeon_gateway", gateway, r"listening on http://"),
        ):
            pass
