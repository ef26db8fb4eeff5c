"""What operators and browsers see of requests: spans at an OTLP receiver, the access log, CORS."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway.peer import Peer
from otlp_receiver import attributes, otlp_receiver
from tests.gateway.conftest import HI, Pool, StartGateway, gateway_config

from aegaeon_gateway.config import HttpLimits, load_config
from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.http.cors import Cors

CHAT = {"model": "tiny", "messages": [HI], "temperature": 0.5, "seed": 1}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ORIGIN = "https://chat.example.com"


@pytest.fixture
def opened(start_gateway: StartGateway) -> StartGateway:
    """Start a gateway that has loaded its model."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Pool]:
        async with start_gateway(**settings) as pool:
            await pool.until_loaded("tiny")
            yield pool

    return start


async def test_a_request_is_a_span_of_its_clients_trace(opened: StartGateway, peer: Peer) -> None:
    async with otlp_receiver() as receiver:
        async with opened(otlp_endpoint=receiver.endpoint, trace_ratio=0.0) as pool:
            await pool.post("/v1/chat/completions", CHAT, headers={"traceparent": PARENT, "X-Request-Id": "mine-9"})
            await pool.chat()  # of a client without a trace: not among those that are recorded
            await pool.post("/v1/chat/completions", {**CHAT, "model": "none"}, headers={"traceparent": PARENT})
        root, refused = receiver.one("chat tiny"), receiver.one("POST /v1/chat/completions")
        below = receiver.one("prepare")
    assert {service for service, _ in receiver.spans} == {"aegaeon-gateway"}
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == tuple(PARENT.split("-")[1:3])
    assert below.parent_span_id == root.span_id
    assert [submit.traceparent for submit in peer.submits] == [f"00-{root.trace_id.hex()}-{root.span_id.hex()}-01", ""]
    said = attributes(root.attributes)
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.request.temperature"] == 0.5
    assert said["gen_ai.response.finish_reasons"] == ["stop"]
    assert said["gen_ai.usage.output_tokens"] > 10
    assert said["http.request.header.x-request-id"] == ["mine-9"]
    assert 0 < said["gen_ai.response.time_to_first_chunk"] <= said["aegaeon.total_s"]
    assert attributes(refused.attributes)["error.type"] == "model_not_found"
    assert attributes(refused.attributes)["http.response.status_code"] == 404


async def test_a_receiver_that_is_away_costs_no_request(opened: StartGateway) -> None:
    async with opened(otlp_endpoint="http://127.0.0.1:9") as pool:
        status, _, _ = await pool.chat()
        assert status == 200


async def test_the_access_log_has_one_json_object_for_each_request(
    opened: StartGateway, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    async with opened(access_log=True) as pool:
        await pool.post("/v1/chat/completions", {**CHAT, "n": 2}, headers={"X-Request-Id": "mine-1"})
        async with pool.http.post(f"{pool.url}/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            await response.read()
        await pool.complete(model="none")
        async with pool.http.get(f"{pool.url}/v1/nothing") as response:
            assert response.status == 404
    whole, streamed, refused, unknown = map(json.loads, capsysbinary.readouterr().out.splitlines())
    assert whole["client_request_id"] == "mine-1"
    assert (whole["status"], whole["outcome"], whole["model"], whole["stream"]) == (200, "ok", "tiny", False)
    assert whole["output_tokens"] == 2 * streamed["output_tokens"] > 0
    assert whole["finish_reasons"] == ["stop", "stop"]
    assert 0 < streamed["first_s"] <= streamed["total_s"] <= streamed["seconds"]
    assert streamed["stream"]
    assert (refused["endpoint"], refused["status"], refused["outcome"]) == ("/v1/completions", 404, "model_not_found")
    assert (unknown["endpoint"], unknown["status"]) == ("unknown", 404)
    assert "hi" not in [*whole.values(), *refused.values()], "a prompt"


async def test_a_browser_may_use_it_from_an_allowed_origin(opened: StartGateway) -> None:
    preflight = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    async with opened(http=HttpLimits(cors_origins=(ORIGIN,))) as pool:
        url = f"{pool.url}/v1/chat/completions"
        async with pool.http.options(url, headers=preflight) as response:
            said = response.headers
            assert response.status == 204
        assert said["Access-Control-Allow-Origin"] == ORIGIN
        assert said["Access-Control-Allow-Methods"] == "POST"
        assert said["Access-Control-Allow-Headers"] == preflight["Access-Control-Request-Headers"]
        assert "Access-Control-Allow-Credentials" not in said
        for stream in (False, True):
            async with pool.http.post(url, json={**CHAT, "stream": stream}, headers={"Origin": ORIGIN}) as response:
                assert response.status == 200
                assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
                assert "X-Request-Id" in response.headers["Access-Control-Expose-Headers"]
        async with pool.http.post(url, data=b"{", headers={"Origin": ORIGIN}) as response:
            assert response.status == 415, "errors can be read as well"
            assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
        async with pool.http.options(url, headers={**preflight, "Origin": "https://evil.example"}) as response:
            assert response.status == 403
            assert "Access-Control-Allow-Origin" not in response.headers
            assert response.headers["Vary"] == "Origin"


async def test_no_page_may_unless_configured(pool: Any) -> None:
    question = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    async with pool.http.options(f"{pool.url}/v1/chat/completions", headers=question) as response:
        assert response.status == 405
        assert not [name for name in response.headers if name.startswith("Access-Control")]


def test_any_origin_is_said_to_be_allowed_by_its_name_and_caches_need_no_distinction() -> None:
    assert Cors(["*"]).headers(ORIGIN)["Access-Control-Allow-Origin"] == ORIGIN
    assert not Cors([]).headers(ORIGIN)
    assert not Cors(["*"]).headers(None)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"otlp_endpoint": "collector:4317"}, "'otlp_endpoint' must be http"),
        ({"otlp_endpoint": "http://c:4317", "trace_ratio": 2}, "from 0 to 1"),
        ({"http": {"cors_origins": ["chat.example.com"]}}, "is no origin"),
        ({"http": {"cors_origins": ["https://chat.example.com/path"]}}, "is no origin"),
        ({"access_log": "yes"}, "access_log: Input should be a valid boolean"),
        ({"http": {"idle_s": 0}}, "http.idle_s: Input should be greater than 0"),
        ({"http": {"idle": 1}}, "http.idle: unknown key"),
        ({"http": {"trusted_proxies": ["10.0.0.1/8"]}}, "http.trusted_proxies.0: 10.0.0.1/8 has host bits set"),
        ({"metrics_listen": "9090"}, "metrics_listen: must be host:port"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(peer: Peer, tmp_path: Path, settings: Any, wrong: str) -> None:
    file = tmp_path / "gateway.json"
    given = {key: value for key, value in gateway_config(peer).items() if key != "http"}
    file.write_text(json.dumps({**given, **settings}))
    with pytest.raises(ConfigError, match=wrong):
        load_config(file)
