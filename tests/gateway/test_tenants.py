"""Authentication and authorization over real HTTP."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway.conftest import HI, Pool, StartGateway, model_status
from gateway.peer import Peer

from aegaeon_gateway.errors import ConfigError, UnauthorizedError
from aegaeon_gateway.tenancy import TenantsFile
from aegaeon_gateway.tenancy import file as tenants_file
from aegaeon_gateway.tenancy.model import Directory, digest
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2

Gateways = Callable[..., Any]
RED = {"name": "red", "models": ["tiny"], "key_files": ["red.key"]}
BLUE = {"name": "blue", "models": ["other"], "key_sha256": [digest("sk-blue")]}


def key(value: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {value}"}}


async def chat(pool: Pool, value: str, **changes: Any) -> tuple[int, Any]:
    """Status and answer of a chat with this key."""
    status, answer, _ = await pool.post(
        "/v1/chat/completions", {"model": "tiny", "messages": [HI], **changes}, **key(value)
    )
    return status, answer


def write(folder: Path, tenants: Sequence[dict[str, Any]], **more: Any) -> Path:
    """A tenants file, replaced as a whole, with the key file that it names beside it."""
    (folder / "red.key").write_text("sk-red\n")
    file = folder / "tenants.json"
    (folder / "new").write_text(json.dumps({"tenants": tenants, **more}))
    os.replace(folder / "new", file)
    return file


@pytest.fixture
def gateways(peer: Peer, model_directory: Path, start_gateway: StartGateway, tmp_path: Path) -> Gateways:
    """Start a gateway with a file of tenants; peers serve `tiny` and `other`."""
    peer.models = [model_status("tiny", model_directory), model_status("other", model_directory)]

    @asynccontextmanager
    async def start(
        tenants: Sequence[dict[str, Any]] | None,
        *,
        open_models: Sequence[str] = (),
        model_quotas: dict[str, Any] | None = None,
        **changes: Any,
    ) -> AsyncIterator[Pool]:
        file = tenants and str(write(tmp_path, tenants, open_models=open_models, model_quotas=model_quotas or {}))
        async with start_gateway(tenants=file, **changes) as pool:
            yield pool
            assert len(pool.served.open) == 0

    return start


async def test_each_tenant_reaches_its_own_models_and_sees_no_others(gateways: Gateways) -> None:
    async with gateways([RED, BLUE]) as pool:
        assert (await pool.chat(model="tiny"))[0] == 401
        for model, name, status in (("tiny", "red", 200), ("other", "red", 404), ("other", "blue", 200)):
            got, answer = await chat(pool, f"sk-{name}", model=model)
            assert got == status, answer
            if status == 404:
                assert answer["error"]["code"] == "model_not_found"
                assert "other" not in answer["error"]["message"].partition("Served here")[2]
        async with pool.http.get(pool.url + "/v1/models", **key("sk-blue")) as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["other"]
        async with pool.http.get(pool.url + "/v1/models/tiny", **key("sk-blue")) as response:
            assert response.status == 404


async def test_an_adapter_is_granted_alone_and_submitted_by_its_own_name(gateways: Gateways, peer: Peer) -> None:
    base = peer.models[0]
    poet, broken = pb.ModelStatus(), pb.ModelStatus()
    for status, name in ((poet, "poet"), (broken, "broken")):
        status.CopyFrom(base)
        status.spec.name, status.spec.identity, status.parent = name, f"of-{name}", "tiny"
    broken.phase, broken.reason = model_pb2.MODEL_PHASE_FAILED, "broken: its rank is 64"
    async with gateways([{**RED, "models": ["poet", "broken"]}]) as pool:
        peer.publish([base, poet, broken])
        await pool.until_models(lambda models: "poet" in models)
        async with pool.http.get(pool.url + "/v1/models", **key("sk-red")) as response:
            listed = {model["id"]: model for model in (await response.json())["data"]}
        assert {name: (one["parent"], one["root"]) for name, one in listed.items()} == {
            "poet": ("tiny", "tiny"),
            "broken": ("tiny", "tiny"),
        }
        broken_state = listed["broken"]["aegaeon"]
        assert (broken_state["phase"], broken_state["reason"]) == ("failed", "broken: its rank is 64")
        for name, expected in (("poet", 200), ("broken", 503), ("tiny", 404)):
            status, answer = await chat(pool, "sk-red", model=name)
            assert status == expected, answer
        assert [(one.model, one.identity) for one in peer.submits] == [("poet", "of-poet")]


async def test_tokens_of_a_model_are_for_its_tenants_alone(gateways: Gateways) -> None:
    async with gateways([RED, BLUE]) as pool:
        for path, body, status in (
            ("/tokenize", {"prompt": "hi"}, 200),
            ("/detokenize", {"tokens": [5]}, 200),
            ("/rerank", {"query": "hi", "documents": ["hi"]}, 400),  # it generates text
            ("/score", {"text_1": "hi", "text_2": "hi"}, 400),
            ("/v1/embeddings", {"input": "hi"}, 400),
        ):
            assert (await pool.post(path, {"model": "tiny", **body}))[0] == 401
            assert (await pool.post(path, {"model": "tiny", **body}, **key("sk-blue")))[0] == 404
            assert (await pool.post(path, {"model": "tiny", **body}, **key("sk-red")))[0] == status


def tenants(*names: str, **more: Any) -> pb.Tenants:
    """A message of the scheduler: tenants of these names with keys sk-NAME for `tiny`."""
    return pb.Tenants(
        tenants=[pb.Tenant(name=n, models=["tiny"], key_sha256=[digest(f"sk-{n}")]) for n in names], **more
    )


async def test_tenants_from_the_scheduler_replace_the_file_and_may_change_while_serving(
    gateways: Gateways, peer: Peer
) -> None:
    async with gateways([RED]) as pool:
        assert (await chat(pool, "sk-red"))[0] == 200
        for names, expected in ((("green",), (401, 200)), (("green", "red"), (200, 200)), ((), (401, 401))):
            peer.reply(tenants=tenants(*names))
            peer.publish(peer.models)  # replies come in order: once this is seen, so are the tenants
            await pool.served.catalog.changed()
            got = [(await chat(pool, f"sk-{n}"))[0] for n in ("red", "green")]
            assert tuple(got) == expected
        peer.reply(
            tenants=tenants("red", open_models=["other"], model_quotas={"other": pb.Quota(requests_per_minute=60)})
        )
        peer.publish(peer.models)
        await pool.served.catalog.changed()
        assert (await pool.chat(model="other"))[0] == 200
        assert (await pool.served.limits.buckets.take("model other:requests", 60, 1, 60, 0)).wait_s > 0
        assert (await pool.chat())[0] == 401


async def test_no_request_is_authorized_before_the_tenants_are_loaded(gateways: Gateways, peer: Peer) -> None:
    async with gateways(None, tenants_by_scheduler=True) as pool:
        await pool.until_models(lambda models: "tiny" in models)
        status, answer, headers = await pool.chat()
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        assert "Retry-After" in headers
        async with pool.http.get(pool.url + "/health") as response:
            assert (response.status, (await response.json())["status"]) == (503, "starting")
        peer.reply(tenants=tenants("red"))
        peer.publish(peer.models)
        await pool.served.catalog.changed()
        async with pool.http.get(pool.url + "/health") as response:
            assert response.status == 200
        assert (await pool.chat())[0] == 401
        assert (await chat(pool, "sk-red"))[0] == 200


async def test_a_key_that_is_not_text_is_401(gateways: Gateways) -> None:
    async with gateways([RED]) as pool:
        head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer \xff\r\n\r\n"
        assert (await pool.raw(head)).startswith(b"HTTP/1.1 401")


async def test_a_wrong_key_is_401_in_openais_shape_and_never_logged(
    gateways: Gateways, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with gateways([RED]) as pool:
        await pool.until_models(lambda models: "tiny" in models)
        for header in ("Bearer sk-stolen", "Basic sk-red", "sk-red", "Bearer"):
            body = {"model": "tiny", "messages": [HI]}
            status, answer, headers = await pool.post("/v1/chat/completions", body, headers={"Authorization": header})
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
            assert headers["WWW-Authenticate"] == "Bearer"
        for path in ("/health", "/metrics"):
            async with pool.http.get(pool.url + path) as response:
                assert response.status == 200
    assert "sk-stolen" not in caplog.text
    assert "sk-red" not in caplog.text


async def test_open_models_need_no_key(gateways: Gateways) -> None:
    async with gateways([RED], open_models=["other"]) as pool:
        assert (await pool.chat(model="other"))[0] == 200
        assert (await pool.chat(model="tiny"))[0] == 401


def test_keys_are_rotated_without_a_restart(tmp_path: Path) -> None:
    now = [0.0]
    file = TenantsFile(write(tmp_path, [RED]), clock=lambda: now[0])
    (tmp_path / "red.key").write_text("sk-red\nsk-next\n")
    now[0] = 2.0
    assert {file.current().identify(f"Bearer {one}").name for one in ("sk-red", "sk-next")} == {"red"}
    (tmp_path / "red.key").write_text("sk-next\n")
    now[0] = 4.0
    with pytest.raises(UnauthorizedError):
        file.current().identify("Bearer sk-red")
    assert file.current().identify("Bearer sk-next").name == "red"


def test_a_key_that_is_rotated_while_the_files_are_read_is_read_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, read = [0.0], tenants_file._directory

    def rotated_behind(file: Any, folder: Path) -> Directory:
        found = read(file, folder)
        (folder / "red.key").write_text("sk-next\n")
        return found

    monkeypatch.setattr(tenants_file, "_directory", rotated_behind)
    file = TenantsFile(write(tmp_path, [RED]), clock=lambda: now[0])
    monkeypatch.setattr(tenants_file, "_directory", read)
    assert file.current().identify("Bearer sk-red").name == "red"
    now[0] = 2.0
    assert file.current().identify("Bearer sk-next").name == "red"


def test_a_key_that_is_written_in_the_same_step_of_the_clock_is_read(tmp_path: Path) -> None:
    now = [0.0]
    path = write(tmp_path, [RED])
    key_file = tmp_path / "red.key"
    at = key_file.stat()
    file = TenantsFile(path, clock=lambda: now[0])
    key_file.write_text("sk-red\nsk-next\n")
    os.utime(key_file, ns=(at.st_atime_ns, at.st_mtime_ns))
    now[0] = 2.0
    assert file.current().identify("Bearer sk-next").name == "red"


def test_a_tenants_file_that_becomes_invalid_keeps_the_former_keys_valid(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    path = write(tmp_path, [RED])
    file = TenantsFile(path, clock=lambda: now[0])
    path.write_text('{"tenants": [{"name": "red"')
    now[0] = 2.0
    assert file.current().identify("Bearer sk-red").name == "red"
    assert "the tenants stay as they were" in caplog.text


@pytest.mark.parametrize(
    ("tenants", "said"),
    [
        ([{**RED, "modles": []}], "tenants.0.modles: unknown key"),
        ([{**RED, "key_files": ["none.key"]}], "key file none.key of tenant 'red' cannot be read"),
        ([RED, {**RED, "name": "twin"}], "tenants 'red' and 'twin' have the same key"),
        (
            [{**RED, "quota": {"requests_per_minute": 0}}],
            "tenants.0.quota.requests_per_minute: Input should be greater",
        ),
    ],
)
def test_an_invalid_file_is_refused_at_startup(tmp_path: Path, tenants: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        TenantsFile(write(tmp_path, tenants))
    assert said in str(raised.value)


def test_all_errors_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    twins = [RED, {**RED, "name": "twin"}, {**RED, "name": "third", "key_files": ["none.key"]}]
    with pytest.raises(ConfigError, match=r"'third' cannot be read.*'red' and 'twin' have the same key"):
        TenantsFile(write(tmp_path, twins))
    with pytest.raises(ConfigError, match=r"tenants\.0\.modles.*tenants\.1\.name"):
        TenantsFile(write(tmp_path, [{**RED, "modles": []}, {**RED, "name": ""}]))


async def test_kept_responses_and_keys_of_other_apis_are_a_tenants_own(gateways: Gateways) -> None:
    async with gateways([RED, {**BLUE, "models": ["tiny"]}]) as pool:
        await pool.until_loaded("tiny")
        asked = {"model": "tiny", "input": "hi"}
        status, kept, _ = await pool.post("/v1/responses", asked, **key("sk-red"))
        assert status == 200, kept
        for value, known in (("sk-red", True), ("sk-blue", False)):
            async with pool.http.get(f"{pool.url}/v1/responses/{kept['id']}", **key(value)) as response:
                assert response.status == (200 if known else 404)
            status, _, _ = await pool.post("/v1/responses", {**asked, "previous_response_id": kept["id"]}, **key(value))
            assert status == (200 if known else 400)
        async with pool.http.delete(f"{pool.url}/v1/responses/{kept['id']}", **key("sk-blue")) as response:
            assert response.status == 404
        message = {"model": "tiny", "max_tokens": 9, "messages": [HI]}
        for value, expected in (("sk-red", 200), ("sk-wrong", 401)):
            status, body, _ = await pool.post("/v1/messages", message, headers={"X-Api-Key": value})
            assert status == expected, body
        assert body["error"]["type"] == "authentication_error"
        text = await pool.metrics()
        assert 'aegaeon_gateway_requests_total{model="tiny",outcome="ok"} 3.0' in text


async def test_a_priority_reaches_the_scheduler_beside_its_tenant(gateways: Gateways) -> None:
    async with gateways([RED]) as pool:
        for path, body in (
            ("chat/completions", {"messages": [HI], "priority": -5}),
            ("chat/completions", {"messages": [HI], "priority": None}),
            ("completions", {"prompt": "hi", "priority": 2**31 - 1}),
            ("responses", {"input": "hi", "priority": 7}),
            ("responses", {"input": "hi"}),
        ):
            status, answer, _ = await pool.post(f"/v1/{path}", {"model": "tiny", **body}, **key("sk-red"))
            assert status == 200, answer
    assert {submit.tenant for submit in pool.peer.submits} == {"red"}
    assert [submit.priority for submit in pool.peer.submits] == [-5, 0, 2**31 - 1, 7, 0]


async def test_a_request_has_its_tenants_terms_for_its_model_and_may_ask_for_a_lower_tier_alone(
    gateways: Gateways,
) -> None:
    asks = ("priority", "auto", None, "fast", "default", "flex")
    chosen = {"interactive": [2, 2, 2, 2, 0, 1], "standard": [0, 0, 0, 0, 0, 1], "batch": [1] * 6}
    tenants = [
        {"name": tier, "models": ["tiny"], "key_sha256": [digest(tier)], "terms": {"tiny": {"weight": 3, "tier": tier}}}
        for tier in chosen
    ]
    async with gateways([*tenants, {**RED, "terms": {"other": {"weight": 9}}}]) as pool:
        for name in (*chosen, "sk-red"):
            for requested in asks:
                assert (await chat(pool, name, service_tier=requested))[0] == 200
        body = {"model": "tiny", "input": "hi", "service_tier": "flex"}
        assert (await pool.post("/v1/responses", body, **key("interactive")))[0] == 200
        *terms, response = [(submit.terms.weight or 1, submit.terms.tier) for submit in pool.peer.submits]
    assert response == (3, model_pb2.TIER_BATCH)
    expected = [(3, tier) for tiers in chosen.values() for tier in tiers]
    assert terms == [*expected, *[(1, tier) for tier in chosen["standard"]]], "red has terms for another model alone"


async def test_clients_without_a_key_have_the_terms_of_most_and_may_ask_for_less(pool: Any) -> None:
    for requested in (None, "priority", "flex"):
        assert (await pool.chat(service_tier=requested))[0] == 200
    assert [submit.HasField("terms") for submit in pool.peer.submits] == [False, False, True]
    assert pool.peer.submits[2].terms.tier == model_pb2.TIER_BATCH


def test_a_key_that_can_be_guessed_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "red.key").write_text("short\nsk-0123456789abcdef\n")
    (tmp_path / "tenants.json").write_text(json.dumps({"tenants": [RED], "open_models": None}))
    TenantsFile(tmp_path / "tenants.json").current()
    assert "tenant 'red': 1 of its keys have fewer than 16 characters" in caplog.text
