"""Files and batches over HTTP, as OpenAI's client uses them; the store is a folder, or a bucket of an S3 server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from gateway.conftest import TEXT, Pool, StartGateway
from gateway.test_batch_work import CHATS, jsonl, pieces
from gateway.test_tenants import BLUE, RED, write
from sidecar.test_s3 import s3

from aegaeon_cli.demo import clients
from aegaeon_gateway.batches.answers import Answers
from aegaeon_gateway.batches.lease import Leases
from aegaeon_gateway.batches.settings import BatchSettings, Bucket
from aegaeon_gateway.batches.store import open_store
from aegaeon_gateway.errors import UnavailableError

__all__ = ["s3"]  # a fixture

QUICK = {"flush_s": 0.05, "look_s": 0.1, "lease_s": 1.0}
FIELD = b"--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\n"
SAID: list[Any] = [{"role": "user", "content": "hi"}]


def chat(number: int, **body: Any) -> dict[str, Any]:
    whole = {"model": "tiny", "messages": SAID, "max_tokens": 200, **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": CHATS, "body": whole}


@pytest.fixture
def pools(start_gateway: StartGateway, tmp_path: Path) -> Callable[..., Any]:
    """A gateway that keeps batches in a folder, for two tenants."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Pool]:
        kept = BatchSettings(folder=str(tmp_path / "kept"), **{**QUICK, **settings})
        async with start_gateway(batches=kept, tenants=str(write(tmp_path, [RED, BLUE]))) as pool:
            await pool.until_loaded("tiny")
            yield pool
        assert len(pool.served.open) == 0
        pool.served.intake.check()

    return start


def client_of(pool: Any, key: str = "sk-red") -> openai.AsyncOpenAI:
    return clients.async_client(pool.url, key)


async def until(client: openai.AsyncOpenAI, id_: str, condition: Callable[[openai.types.Batch], bool]) -> Any:
    """Wait for a batch."""
    for _ in range(1000):
        if condition(batch := await client.batches.retrieve(id_)):
            return batch
        await asyncio.sleep(0.02)
    raise AssertionError(batch)


def counts(batch: openai.types.Batch) -> tuple[int, int, int]:
    """Total, completed and failed requests."""
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


async def over(client: openai.AsyncOpenAI, id_: str) -> Any:
    return await until(client, id_, lambda batch: batch.status in ("completed", "failed", "cancelled"))


async def lines_of(client: openai.AsyncOpenAI, file: str | None) -> dict[str, Any]:
    assert file is not None
    content = await client.files.content(file)
    return {line["custom_id"]: line for line in map(json.loads, content.text.splitlines())}


async def started(client: openai.AsyncOpenAI, data: bytes, endpoint: Any = CHATS) -> openai.types.Batch:
    file = await client.files.create(file=("night.jsonl", data), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


async def test_the_client_gets_what_it_would_online(pools: Any) -> None:
    async with pools() as pool, client_of(pool) as client:
        online = await client.chat.completions.create(model="tiny", messages=SAID, max_tokens=200)
        refused = [chat(3, stream=True), chat(4, temperature=9), chat(5, model="other")]
        made = await started(client, jsonl(*map(chat, range(3)), *refused))
        assert (made.object, made.status, made.expires_at) == ("batch", "validating", made.created_at + 86_400)
        batch = await over(client, made.id)
        assert counts(batch) == (6, 3, 3)
        output = await lines_of(client, batch.output_file_id)
        assert set(output) == {"r0", "r1", "r2"}
        for line in output.values():
            body = line["response"]["body"]
            assert body["choices"][0]["message"]["content"] == online.choices[0].message.content == TEXT
            assert body["usage"] == online.usage.to_dict() if online.usage else False
        errors = await lines_of(client, batch.error_file_id)
        answers = {id_: (line["response"]["status_code"], line["response"]["body"]["error"]["param"])
                for id_, line in errors.items()}  # fmt: skip
        assert answers == {"r3": (400, "stream"), "r4": (400, "temperature"), "r5": (404, "model")}
        page = await client.batches.list(limit=1)
        assert [one.id for one in page.data] == [made.id]
        metrics = await pool.metrics()
        assert 'aegaeon_gateway_used_tokens_total{kind="output",model="tiny",tenant="red"}' in metrics
        assert 'aegaeon_gateway_ttft_seconds_count{model="tiny"} 1.0' in metrics, "no client waited for the batch"
    first, *others = pool.peer.submits
    assert (first.defer_s, first.tenant) == (0.0, "red")
    assert {submit.defer_s for submit in others} == {60.0}


async def test_files_are_listed_read_and_deleted(pools: Any) -> None:
    async with pools() as pool, client_of(pool) as client:
        made = [await client.files.create(file=(f"{n}.jsonl", b"%d\n" % n), purpose="batch") for n in range(3)]
        kept = await client.files.create(
            file=("k", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert kept.expires_at == kept.created_at + 3600
        assert (made[0].filename, made[0].bytes, made[0].purpose) == ("0.jsonl", 2, "batch")
        assert [file.id async for file in client.files.list(limit=2, order="asc")] == [*(m.id for m in made), kept.id]
        assert [file.id async for file in client.files.list(purpose="vision")] == []
        page = await client.files.list(purpose="batch", limit=3, order="asc")
        assert ([file.id for file in page.data], page.has_more) == ([m.id for m in made], True)
        assert (await client.files.content(made[1].id)).content == b"1\n"
        assert (await client.files.delete(made[1].id)).deleted
        with pytest.raises(openai.NotFoundError, match="No such file"):
            await client.files.retrieve(made[1].id)
        mistakes: tuple[tuple[dict[str, Any], str], ...] = (
            ({"purpose": "fine-tune"}, "purpose"),
            ({"purpose": "batch", "expires_after": {"anchor": "created_at", "seconds": 5}}, "expires_after"),
            ({"purpose": "batch", "extra_body": {"more": "x"}}, "more"),
        )
        for wrong, said in mistakes:
            with pytest.raises(openai.BadRequestError, match=said):
                await client.files.create(file=("a", b"x"), **wrong)
        assert len([1 async for _ in client.files.list()]) == 3


async def test_nobody_sees_the_files_and_batches_of_another_tenant(pools: Any) -> None:
    async with pools() as pool, client_of(pool) as red, client_of(pool, "sk-blue") as blue:
        batch = await started(red, jsonl(chat(0)))
        await over(red, batch.id)
        for ask in (
            blue.files.retrieve(batch.input_file_id), blue.files.content(batch.input_file_id),
            blue.files.delete(batch.input_file_id), blue.batches.retrieve(batch.id), blue.batches.cancel(batch.id),
            blue.batches.create(input_file_id=batch.input_file_id, endpoint=CHATS, completion_window="24h"),
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError):
                await ask
        assert (await blue.files.list()).data == []
        assert (await blue.batches.list()).data == []
        with pytest.raises(openai.BadRequestError, match="completed already"):
            await red.batches.cancel(batch.id)
        for path in ("/v1/files", "/v1/batches"):
            async with pool.http.get(pool.url + path) as response:
                assert response.status == 401


async def test_a_cancelled_batch_keeps_what_is_answered(pools: Any) -> None:
    async with pools(in_flight=2) as pool, client_of(pool) as client:
        batch = await started(client, jsonl(*map(chat, range(3)), *(chat(n, max_tokens=7) for n in range(3, 9))))
        output = pool.peer.say(None, 0)
        pool.peer.say = lambda submit, choice: [] if submit.limits.max_tokens == 7 else output
        await until(client, batch.id, lambda batch: counts(batch)[1] == 3)
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        cancelled = await over(client, batch.id)
        assert set(await lines_of(client, cancelled.output_file_id)) == {"r0", "r1", "r2"}
        assert len(await lines_of(client, cancelled.error_file_id)) == 6
    assert pool.peer.cancels, "what was under way has ended at its engine"


async def test_a_gateway_that_ends_hands_its_batch_to_another_one(pools: Any) -> None:
    async with pools(lease_s=600.0) as pool, client_of(pool) as client:
        pool.peer.serve_tokens = False
        batch = await started(client, jsonl(*map(chat, range(4))))
        await pool.peer.until(lambda: len(pool.peer.submits) >= 1)
    pool.peer.serve_tokens = True
    async with pools(lease_s=600.0) as pool, client_of(pool) as client:
        assert (await over(client, batch.id)).status == "completed"
        assert len(await lines_of(client, (await client.batches.retrieve(batch.id)).output_file_id)) == 4


async def test_online_requests_that_wait_leave_no_slot_to_batches(pools: Any) -> None:
    async with pools() as pool, client_of(pool) as client:
        tiny = pool.peer.models[0]
        tiny.spec.ttft_s = 0.2
        pool.peer.publish(pool.peer.models)
        await pool.until_models(lambda models: models["tiny"].spec.ttft_s == 0.2)
        pool.peer.serve_tokens = False
        waiting = asyncio.create_task(client.chat.completions.create(model="tiny", messages=SAID))
        await pool.peer.until(lambda: len(pool.peer.submits) == 1)
        await asyncio.sleep(1.2)  # two looks at it
        batch = await started(client, jsonl(*map(chat, range(2))))
        await asyncio.sleep(1.0)
        assert len(pool.peer.submits) == 1
        pool.peer.serve_tokens = True
        online = pool.peer.submits[0]
        await pool.peer.push(pool.peer.tokens_of(online, online.choices[0]))
        await waiting
        assert (await over(client, batch.id)).status == "completed"


async def test_other_endpoints_are_asked_as_online(pools: Any, model_directory: Path) -> None:
    async with pools() as pool, client_of(pool) as client:
        for endpoint, body in (
            ("/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": 200}),
            ("/v1/responses", {"model": "tiny", "input": "hi"}),
        ):
            line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
            lines = (
                [line]
                if "input" not in body
                else [line, {**line, "custom_id": "b", "body": {**body, "background": True}}]
            )
            batch = await over(client, (await started(client, jsonl(*lines), endpoint)).id)
            assert counts(batch) == (len(lines), 1, len(lines) - 1)
            said = json.dumps(await lines_of(client, batch.output_file_id), ensure_ascii=False)
            assert TEXT in said


async def test_a_pool_without_a_store_says_so(pool: Any) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/files/file-1/content"):
        async with pool.http.get(pool.url + path) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "batches_off")


async def test_what_is_no_form_or_comes_from_another_site_is_refused(pools: Any) -> None:
    async with pools() as pool:
        key = {"Authorization": "Bearer sk-red"}
        form = {**key, "Content-Type": "multipart/form-data; boundary=b"}
        for headers, data, status in (
            (key, b"{}", 415),
            (form, b"nonsense", 400),
            (form, FIELD + b"batch\r\n--b--\r\n", 400),
            (
                form,
                FIELD + b"x" * 5000 + b"\r\n--b--\r\n",
                400,
            ),
            ({**form, "Content-Type": "multipart/form-data"}, b"x", 400),
            (form, FIELD.replace(b"name=purpose", b'name="file"; filename="a\0b"') + b"x\r\n--b--\r\n", 400),
        ):
            async with pool.http.post(f"{pool.url}/v1/files", data=data, headers=headers) as response:
                assert response.status == status, data
                assert "error" in await response.json()
        foreign = {**key, "Origin": "https://elsewhere.example"}
        async with pool.http.post(f"{pool.url}/v1/batches/b/cancel", headers=foreign) as response:
            assert response.status == 403


async def test_a_bucket_does_what_a_folder_does(s3: Any, tmp_path: Path) -> None:
    """The store's promises that everything else stands on, against an S3 server with credentials from a file."""
    file = tmp_path / "keys"
    file.write_text("[default]\naws_access_key_id = test\naws_secret_access_key = test\n")
    bucket = Bucket(bucket="models", prefix="night/", endpoint=s3.meta.endpoint_url, credentials_file=str(file))
    store = open_store(BatchSettings(s3=bucket))
    both = await asyncio.gather(*(Leases(store, who, 9, lambda: 0.0).claim("b/leases") for who in ("a", "c")))
    assert len([lease for lease in both if lease]) == 1
    data = bytes(range(256)) * 30_000
    assert await store.upload("files/big", pieces(data)) == len(data)
    assert await store.part("files/big", 5 << 20, 100) == data[5 << 20 : (5 << 20) + 100]
    assert b"".join([piece async for piece in store.stream("files/big")]) == data
    answers = Answers(store, "b/answers", 1)
    answers.add(3, True, b'{"a":1}')
    assert await answers.flush()
    other = Answers(store, "b/answers", 2)
    await other.load()
    assert other.has(3)
    assert await store.folders("b") == ["answers", "leases"]
    assert [entry.key for entry in await store.entries("files")] == ["files/big"]
    await store.delete("files/big", "files/none")
    assert (await store.get("files/big"), await store.part("files/big", 0, 1)) == (None, None)
    lost = Bucket(bucket="none", endpoint=s3.meta.endpoint_url, credentials_file=str(file))
    with pytest.raises(UnavailableError):
        await open_store(BatchSettings(s3=lost)).put("a", b"")
