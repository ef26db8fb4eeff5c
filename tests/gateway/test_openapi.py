"""The gateway against its own description: schemathesis asks for what it says, and for what it does not."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway.conftest import STRICT

REFUSALS = [400, 404, 405, 413, 415, 422, 429]  # of what breaks the schema; 413: a list of too many texts
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method"
)


async def schemathesis(pool: Any, folder: Path, seconds: int, examples: int, seed: int) -> None:
    """Its command line in a process of its own: what it found wrong is the message of the failure.

    It is given the model's name, so that its requests get further than to 404.
    """
    document = await described(pool)
    for kind, schema in document["components"]["schemas"].items():
        if kind.endswith("Request") and "model" in schema["properties"]:
            schema["properties"]["model"] = {"enum": ["tiny", "nothing"]}
    (folder / "openapi.json").write_text(json.dumps(document))
    (folder / "schemathesis.toml").write_text(
        f"checks.negative_data_rejection.expected-statuses = {REFUSALS}\n"
        f"generation.max-examples = {examples}\n"
        f"phases.stateful.generation.max-examples = {max(examples // 6, 1)}\n"  # else it takes all the time it is given
    )
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", pool.url, "--no-color"),
        *("--max-time", str(seconds), "--seed", str(seed)),
        *("--checks", CHECKS, "--generation-database", "none", "--continue-on-failure", "--no-shrink"),
        *("--request-timeout", "60", "--suppress-health-check", "all", "--warnings", "off"),
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await run.communicate()
    assert run.returncode == 0, output.decode()[-6000:]
    assert f"Tested: {sum(map(len, document['paths'].values()))}" in output.decode(), output.decode()[-2000:]


async def described(pool: Any) -> Any:
    async with pool.http.get(f"{pool.url}/openapi.json") as response:
        assert response.status == 200
        return await response.json()


async def test_every_parameter_is_described(pool: Any) -> None:
    document = await described(pool)
    chat = document["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["model", "messages"]
    assert {"temperature", "logit_bias", "max_completion_tokens", "tools", "repetition_penalty"} <= set(
        chat["properties"]
    )
    assert not chat["additionalProperties"]


@STRICT
async def test_requests_generated_from_the_openapi_schema_are_answered_as_it_defines(pool: Any, tmp_path: Path) -> None:
    await pool.until_models(lambda models: "tiny" in models)
    share = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # it reaches every route in the time of a free machine
    await schemathesis(pool, tmp_path, seconds=round(12 * share), examples=20, seed=0)


@STRICT
@pytest.mark.slow
async def test_many_requests_generated_from_the_openapi_schema_are_answered_as_it_defines(
    pool: Any, tmp_path: Path
) -> None:
    await pool.until_models(lambda models: "tiny" in models)
    await schemathesis(pool, tmp_path, seconds=int(os.environ.get("SCHEMATHESIS_S", "120")), examples=1000, seed=1)
