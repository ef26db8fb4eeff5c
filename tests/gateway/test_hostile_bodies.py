"""Bodies that cost much: refused by size or at their first error, with one sentence, and never by the event loop."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from typing import Any

import pytest

from aegaeon_gateway.errors import ApiError, InvalidRequestError
from aegaeon_gateway.http.intake import UNCOUNTED_BYTES, Intake
from aegaeon_gateway.request.parse import names_of, parse
from aegaeon_gateway.request.schema import ChatRequest, CompletionRequest
from aegaeon_proto.v1 import gateway_pb2 as pb

ZEROS = b'{"model":"nope","messages":[' + b"0," * 1_000_000 + b"0]}"
JSON = {"Content-Type": "application/json"}
REFUSALS = ("invalid_json", "invalid_value", "unsupported_parameter", "missing_parameter")


def chat(*, text: str = "hi", **more: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": text}], **more}).encode()


def test_checking_stops_at_the_first_error() -> None:
    """A hundred times the body that once cost 5 s."""
    began = time.process_time()
    for _ in range(100):
        with pytest.raises(InvalidRequestError) as error:
            parse(ChatRequest, ZEROS)
    assert time.process_time() - began < 5
    assert error.value.param == "messages[0]"


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":' + b"[" * 500_000 + b"]" * 500_000 + b',"model":"tiny"}',
        b'{"x":' + b'{"a":' * 500_000 + b"1" + b"}" * 500_000 + b',"model":"tiny"}',
        b'{"messages":' + b"[" * 500_000,
        b'{"model":"\\ud800"}',
        b'{"model":"tiny","messages":"\xff"}',
        b'{"model":"tiny"} {"model":"other"}',
        b'{"model":"tiny","seed":1e99999999999}\x00',
        b"",
        b"null",
    ],
)
def test_an_unparsable_body_is_refused_with_a_short_sentence(body: bytes) -> None:
    for kind in (ChatRequest, CompletionRequest):
        with pytest.raises(InvalidRequestError) as error:
            parse(kind, body)
        assert error.value.code in REFUSALS
        assert len(error.value.message) < 300


@pytest.mark.parametrize(
    ("more", "param"),
    [
        (b'"seed":' + b"9" * 100_000, "seed"),
        (b'"temperature":' + b"9" * 100_000, "temperature"),
        (b'"temperature":1e400', "temperature"),
        (b'"top_p":-0.0', "top_p"),
        (b'"tools":[' + b"[]," * 100_000 + b"0]", "tools[0]"),
        (b'"functions":[' + b"[]," * 100_000 + b"0]", "functions"),
        (b'"' + b"x" * 100_000 + b'":1', "x" * 128),
        (b'"logit_bias":{"' + b"9" * 100_000 + b'":1}', "logit_bias"),
    ],
)
def test_huge_values_are_refused_with_a_short_sentence(more: bytes, param: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        parse(ChatRequest, b'{"model":"tiny","messages":[{"role":"user","content":""}],' + more + b"}")
    assert error.value.param == param
    assert len(error.value.message) < 300


def test_the_last_of_duplicate_keys_counts_for_authorization_and_request_alike() -> None:
    body = b'{"model":"granted","messages":[{"role":"user","content":"x"}],"model":"other"}'
    assert names_of(body)[0] == parse(ChatRequest, body).model == "other"


async def test_a_body_that_no_context_can_use_is_refused_before_it_is_read_as_json(pool: Any) -> None:
    await pool.until_loaded("tiny")
    async with pool.http.post(f"{pool.url}/v1/chat/completions", data=b"x" * 90_000, headers=JSON) as response:
        assert response.status == 413
        assert "73728 bytes" in (await response.json())["error"]["message"]


async def test_a_text_that_no_context_can_use_is_refused_before_it_is_tokenized(pool: Any) -> None:
    status, body, _ = await pool.complete(prompt=["hi", "x" * 10_000])
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "prompt")
    many = [{"role": "user", "content": ""}] * 300
    status, body, _ = await pool.chat(messages=many)
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "messages")
    assert "300 messages" in body["error"]["message"]


async def test_a_large_body_for_no_model_is_refused_without_being_checked(pool: Any) -> None:
    long = pb.ModelStatus()
    long.CopyFrom(pool.peer.models[0])
    long.spec.name, long.footprint.max_model_len = "long", 1 << 20
    pool.peer.publish([*pool.peer.models, long])
    await pool.until_models(lambda models: "long" in models)
    async with pool.http.post(f"{pool.url}/v1/chat/completions", data=ZEROS[:90_000] + b"0]}", headers=JSON) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "model_not_found")


async def test_long_prompts_are_tokenized_completely(pool: Any) -> None:
    ids = [number % 380 for number in range(250)]
    await pool.complete(prompt=[ids, ids[:3]], max_tokens=1)
    assert [list(submit.prompt) for submit in pool.peer.submits] == [ids, ids[:3]]


def test_large_requests_share_a_budget_and_small_ones_need_none() -> None:
    intake = Intake(requests=10, memory_bytes=100_000)
    with intake.request("red", shared=True) as first, intake.request("blue", shared=True) as second:
        first.hold(UNCOUNTED_BYTES + 50_000)
        with pytest.raises(ApiError, match="memory") as error:
            first.hold(UNCOUNTED_BYTES + 50_001)
        assert (error.value.status, error.value.headers) == (503, {"Retry-After": "1"})
        second.hold(UNCOUNTED_BYTES + 16_667)  # a third of what is left
        with pytest.raises(ApiError, match="memory"):
            second.hold(UNCOUNTED_BYTES + 16_668)
        with intake.request("green", shared=True) as third:
            third.hold(UNCOUNTED_BYTES)
        first.hold(0)
    intake.check()


def test_every_owner_that_comes_finds_room_however_much_others_hold() -> None:
    intake = Intake(requests=4096, memory_bytes=1)
    with ExitStack() as held:
        for owner, share in (("red", 2048), ("blue", 683), ("green", 342), ("keyless", 205)):
            for _ in range(share):
                held.enter_context(intake.request(owner, shared=True))
            with pytest.raises(ApiError, match="open"), intake.request(owner, shared=True):
                pass
    intake.check()


def test_a_tenant_has_half_of_the_open_requests_at_most() -> None:
    intake = Intake(requests=4, memory_bytes=1)
    with intake.request("red", shared=True), intake.request("red", shared=True):
        with pytest.raises(ApiError, match="open"), intake.request("red", shared=True):
            pass
        with intake.request("blue", shared=True):
            pass
    intake.check()


async def test_an_incomplete_body_holds_no_budget_after_its_client_disconnects(pool: Any) -> None:
    await pool.until_loaded("tiny")
    _, writer = await asyncio.open_connection("127.0.0.1", pool.served.port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 90000"
    writer.write(head.encode() + b"\r\n\r\n" + b" " * 80_000)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(60):
        while True:
            try:
                pool.served.intake.check()
                break
            except AssertionError:
                await asyncio.sleep(0.01)
