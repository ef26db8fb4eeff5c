"""Whatever a client sends wrong, it gets one shape of answer, never a traceback, and it is counted and logged."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
from typing import Any

import pytest
from gateway.test_connections import BODY, TEXT, answer, post

from aegaeon_gateway.errors import HttpError
from aegaeon_gateway.http.refusals import drop_frames
from aegaeon_gateway.log_limit import BURST_LINES, LINES_PER_S, LineLimit
from aegaeon_gateway.request_id import LOG_FORMAT, RequestIdFilter

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
COMPLETIONS = "/v1/completions"

MALFORMED: dict[str, tuple[bytes, int]] = {
    "no HTTP": (b"\x16\x03\x01 hello\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/9": (b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", 400),
    "no version": (b"GET /health\r\nHost: localhost\r\n\r\n", 505),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "two hosts": (HEALTH + b"Host: b\r\n\r\n", 400),
    "long line": (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    "long field": (HEALTH + b"X: " + b"x" * 9000 + b"\r\n\r\n", 431),
    "long name": (HEALTH + b"x" * 9000 + b": x\r\n\r\n", 431),
    "many fields": (HEALTH + b"".join(b"X-%d: x\r\n" % n for n in range(150)) + b"\r\n", 431),
    "bad field": (HEALTH + b"no colon\r\n\r\n", 400),
    "control characters": (HEALTH + b"X: a\x00b\r\n\r\n", 400),
    "folded": (HEALTH + b"X: a\r\n b\r\n\r\n", 400),
    "two lengths": (post(BODY, "Content-Length: 5"), 400),
    "negative length": (post(BODY, length=-1), 400),
    "both lengths": (post(BODY, "Transfer-Encoding: chunked"), 400),
    "bad coding": (post(BODY, "Transfer-Encoding: gzip").replace(b"Content-Length", b"X-Length"), 400),
    "expectation": (post(BODY, "Expect: miracles", "Connection: close"), 417),
    "too large": (post(BODY, "Connection: close", length=1 << 40), 413),
    "unknown route": (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
    "no UTF-8 in a path": (b"GET /v1/\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
    "a surrogate in a path": (b"GET /v1/%ed%a0%80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
    "unknown method": (b"BREW /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
    "wrong method": (b"DELETE /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
    "connect": (b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
    "preflight": (b"OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_gets_openais_error(pool: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    data, expected = MALFORMED[name]
    async with asyncio.timeout(60):
        received = await pool.raw(data)
    status, body = answer(received)
    assert (status, set(body["error"])) == (expected, {"message", "type", "param", "code"}), received
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["code"]
    assert b"access-control" not in received.lower()
    assert "Traceback" not in caplog.text
    assert f'status="{expected}"' in await pool.metrics()


async def test_broken_chunks_are_refused(pool: Any, caplog: pytest.LogCaptureFixture) -> None:
    head = post(b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
    for chunks in (b"zz\r\n", b"5\r\nabcdefgh\r\n0\r\n\r\n", b"-1\r\n\r\n", b"fffffffffffffffffff\r\n"):
        async with asyncio.timeout(60):
            for pieces in ((head + chunks,), (head, chunks)):
                status, body = answer(await pool.raw(*pieces))
                assert (status, body["error"]["code"]) == (400, "malformed_request"), chunks
    assert "Traceback" not in caplog.text


async def test_absolute_form_and_offers_to_upgrade_are_served(pool: Any) -> None:
    await pool.until_models(lambda models: "tiny" in models)
    absolute = b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert (await pool.raw(absolute)).startswith(b"HTTP/1.1 200")
    for upgrade in ("h2c", "websocket"):
        data = await pool.raw(post(BODY, f"Upgrade: {upgrade}", "Connection: Upgrade"), half_close=True)
        assert answer(data)[1]["choices"][0]["text"] == TEXT, upgrade


async def test_a_client_that_expects_100_receives_continue(pool: Any) -> None:
    head, body = post(BODY, "Expect: 100-continue", "Connection: close").split(b"\r\n\r\n", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", pool.served.port)
    writer.write(head + b"\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert answer(await reader.read())[0] == 200
    writer.close()


async def test_encoded_bodies_are_refused(pool: Any) -> None:
    for encoding, data in (("gzip", gzip.compress(BODY)), ("br", BODY), ("deflate", b"x"), ("nonsense", BODY)):
        status, body = answer(await pool.raw(post(data, f"Content-Encoding: {encoding}", "Connection: close")))
        assert (status, body["error"]["code"]) == (415, "unsupported_encoding")
    assert answer(await pool.raw(post(BODY, "Content-Encoding: identity", "Connection: close")))[0] == 200


async def test_only_json_is_accepted(pool: Any) -> None:
    refused = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
               "application/json; charset=utf-16", "application/jsonx")  # fmt: skip
    for kind in refused:
        request = post(BODY, "Connection: close").replace(b"application/json", kind.encode())
        status, body = answer(await pool.raw(request))
        assert (status, body["error"]["code"]) == (415, "unsupported_media_type"), kind
    without = post(BODY, "Connection: close").replace(b"Content-Type: application/json\r\n", b"")
    assert answer(await pool.raw(without))[0] == 415
    assert not pool.peer.submits
    for kind in ("application/json; charset=utf-8", "Application/JSON;charset=UTF-8"):
        request = post(BODY, "Connection: close").replace(b"application/json", kind.encode())
        assert answer(await pool.raw(request))[0] == 200


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8000", None, 200),
        ("127.0.0.1", "http://localhost:3000", 200),
        ("[::1]:8000", "http://[::1]", 200),
        ("app.localhost", None, 200),
        ("rebound.example.org", None, 403),
        ("localhost.example.org", None, 403),
        ("localhost", "https://example.org", 403),
        ("localhost", "null", 403),
        ("gateway.internal", "https://gateway.internal", 200),
        ("[", None, 403),
    ],
)
@pytest.mark.parametrize("limits", [{"allowed_hosts": ["gateway.internal"]}], indirect=True)
async def test_a_gateway_on_localhost_serves_its_own_host_names_and_refuses_foreign_origins(
    pool: Any, host: str, origin: str | None, status: int
) -> None:
    fields = ["Connection: close", *([f"Origin: {origin}"] if origin else [])]
    received = await pool.raw(post(BODY, *fields).replace(b"Host: localhost", f"Host: {host}".encode()))
    assert answer(received)[0] == status


async def test_refusals_are_counted_by_endpoint_and_code_and_never_by_what_clients_wrote(pool: Any) -> None:
    await pool.post("/v1/completions", {"model": "evil-name", "prompt": "x"})
    await pool.post("/v1/chat/completions", {"model": "tiny", "messages": []})
    await pool.post("/v1/evil-path", {})
    text = await pool.metrics()
    prefix = "aegaeon_gateway_refused_total"
    assert f'{prefix}{{code="model_not_found",endpoint="/v1/completions",status="404"}} 1.0' in text
    assert f'{prefix}{{code="invalid_value",endpoint="/v1/chat/completions",status="400"}} 1.0' in text
    assert f'{prefix}{{code="not_found",endpoint="unknown",status="404"}} 1.0' in text
    assert "evil" not in text


async def test_log_lines_contain_both_ids_and_nothing_else_of_the_client(
    pool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(RequestIdFilter())
    caplog.handler.setFormatter(logging.Formatter(LOG_FORMAT))
    for given, logged in (("mine-1", " (client's mine-1)"), ("a b", ""), ("x" * 200, ""), ("ü", "")):
        caplog.clear()
        request = post(json.dumps({"model": "evil", "prompt": "evil"}).encode(), f"X-Request-Id: {given}")
        await pool.raw(request, half_close=True)
        [line] = [line for line in caplog.text.splitlines() if "aegaeon_gateway.http.refusals" in line]
        assert re.search(rf" \[[0-9a-f]{{32}}{re.escape(logged)}\]: from ", line)
        assert "evil" not in line
    caplog.clear()
    _, body, _ = await pool.post(COMPLETIONS, json.loads(BODY), headers={"X-Request-Id": "mine-2"})
    [line] = [line for line in caplog.text.splitlines() if "aegaeon_gateway.http.server" in line]
    assert f"[{body['id'].removeprefix('cmpl-')} (client's mine-2)]: /v1/completions 200 after" in line


def test_log_lines_above_the_rate_are_dropped_and_counted() -> None:
    now = [0.0]
    limit = LineLimit(clock=lambda: now[0])

    def line_of(name: str = "refusals") -> str | None:
        record = logging.LogRecord(name, logging.INFO, "", 0, "refused %d", (7,), None)
        return record.getMessage() if limit.filter(record) else None

    burst = int(BURST_LINES)
    assert [line_of() for _ in range(burst)] == ["refused 7"] * burst
    assert [line_of() for _ in range(50)] == [None] * 50
    assert line_of("link") == "refused 7", "every logger has a rate of its own"
    now[0] += 1 / LINES_PER_S
    assert line_of() == "refused 7 (50 lines before it left out)"
    assert line_of() is None


def test_a_fault_is_logged_regardless_of_the_rate_limit_on_requests() -> None:
    limit = LineLimit(clock=lambda: 0.0)

    def line_of(level: int) -> bool:
        return limit.filter(logging.LogRecord("server", level, "", 0, "a line", (), None))

    assert [line_of(logging.INFO) for _ in range(int(BURST_LINES) + 1)][-2:] == [True, False]
    assert line_of(logging.ERROR)


def test_an_error_that_was_answered_holds_no_frames() -> None:
    """They hold bodies, for as long as the garbage collector leaves the cycle alone."""
    with pytest.raises(HttpError) as caught:
        _fail()
    drop_frames(caught.value)
    assert caught.value.__traceback__ is None
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__traceback__ is None


def _fail() -> None:
    try:
        raise ValueError("inner")
    except ValueError as inner:
        raise HttpError("outer", status=400, code="x") from inner
