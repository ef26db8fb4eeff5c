"""Models by their names, and what requests are answered for one that no engine can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gateway.conftest import model_status

from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2


@pytest.mark.parametrize("name", ["qwen3:8b", "org/Model@v2:instruct"])
async def test_names_of_other_servers_name_a_model(pool: Any, model_directory: Path, name: str) -> None:
    pool.peer.publish([*pool.peer.models, model_status(name, model_directory)])
    await pool.until_models(lambda models: name in models)
    async with pool.http.get(f"{pool.url}/v1/models/{name}") as response:
        assert (response.status, (await response.json())["id"]) == (200, name)
    status, body, _ = await pool.chat(model=name)
    assert (status, body["model"]) == (200, name)


async def test_a_model_that_no_engine_can_run_is_an_error_that_clients_do_not_repeat(pool: Any) -> None:
    unsupported = pb.ModelStatus(
        spec=model_pb2.ModelSpec(name="odd"), phase=model_pb2.MODEL_PHASE_FAILED, reason="heads of 24", unsupported=True
    )
    pool.peer.publish([*pool.peer.models, unsupported])
    await pool.until_models(lambda models: "odd" in models)
    status, body, headers = await pool.chat(model="odd")
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_unsupported", "model")
    assert "heads of 24" in body["error"]["message"]
    assert "Retry-After" not in headers
    message = {"model": "odd", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    status, body, _ = await pool.post("/v1/messages", message)
    assert (status, body["error"]["type"]) == (404, "not_found_error")
