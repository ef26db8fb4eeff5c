"""A batch from its input to its files: the real store in a folder, and an asker that answers what a test says."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aegaeon_gateway.batches.batches import Batches
from aegaeon_gateway.batches.files import Files
from aegaeon_gateway.batches.keys import BatchKeys
from aegaeon_gateway.batches.lease import Lease, LeaseLostError, Leases
from aegaeon_gateway.batches.pages import Cursor, new_id, page
from aegaeon_gateway.batches.records import Order
from aegaeon_gateway.batches.runner import sweep_batches
from aegaeon_gateway.batches.settings import BatchSettings
from aegaeon_gateway.batches.store import open_store
from aegaeon_gateway.batches.throttle import Pressure, Throttle, next_limit
from aegaeon_gateway.batches.work import Reply, Tools, Work
from aegaeon_gateway.config import load_config
from aegaeon_gateway.errors import ApiError, ConfigError, model_failed

CHATS = "/v1/chat/completions"
Ask = Callable[[dict[str, Any]], Reply]


def request(number: int, **changes: Any) -> dict[str, Any]:
    return {"custom_id": f"r{number}", "method": "POST", "url": CHATS, "body": {"n": number}, **changes}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


class World:
    """A store, and gateways that work on its batches one after the other. `now`: seconds, which pass for all clocks;
    `wall`: unix seconds, `set_s` ahead of those."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.settings = BatchSettings(folder=str(folder), flush_s=0.02, lease_s=0.4, **changes)
        self.store = open_store(self.settings)
        self.now, self.set_s, begun = 1_000_000.0, 0.0, time.monotonic()
        self.wall = lambda: self.now + self.set_s
        self.monotonic = lambda: self.now + time.monotonic() - begun
        self.files = Files(self.store, self.settings, self.wall)
        self.batches = Batches(self.store, self.files, self.settings, self.wall)
        self.asked: list[int] = []
        self.reply: Ask = lambda body: Reply(200, "req", json.dumps({"said": body["n"]}).encode())
        self.held = asyncio.Event()
        self.hold_from = 1 << 30

    async def ask(self, tenant: str, endpoint: str, body: bytes) -> Reply:
        """Implements Asker; requests from number `hold_from` on wait until they are cancelled."""
        assert (tenant, endpoint) == ("red", "chat")
        asked = json.loads(body)
        self.asked.append(asked["n"])
        if asked["n"] >= self.hold_from:
            self.held.set()
            await asyncio.Event().wait()
        return self.reply(asked)

    async def upload(self, data: bytes) -> str:
        id_, nbytes = await self.files.receive("red", pieces(data))
        await self.files.add("red", id_, nbytes, "in.jsonl", self.settings.keep_s)
        return id_

    async def order(self, data: bytes) -> Order:
        made = await self.batches.create("red", CHATS, await self.upload(data), "24h", 3600, {"a": "b"})
        found = await self.store.get(BatchKeys("red", made["id"]).order)
        return msgspec.json.decode(found or b"", type=Order)

    async def work(self, order: Order, holder: str = "gw") -> Work:
        lease = await self.claim(order, holder)
        assert lease is not None
        throttle = Throttle(8)
        for _ in range(8):
            await throttle.tick(Pressure())
        return Work(self.tools(throttle), order, lease)

    def tools(self, throttle: Throttle) -> Tools:
        return Tools(self.store, self.files, self.settings, throttle, self, 1 << 20, self.wall, self.monotonic)

    async def claim(self, order: Order, holder: str) -> Lease | None:
        leases = Leases(self.store, holder, self.settings.lease_s, lambda: self.now)
        return await leases.claim(BatchKeys("red", order.id).leases)

    async def shown(self, order: Order) -> dict[str, Any]:
        return await self.batches.get("red", order.id)

    async def lines(self, file: str | None) -> list[dict[str, Any]]:
        if file is None:
            return []
        data = b"".join([piece async for piece in self.files.content("red", file)])
        assert (await self.files.get("red", file)).nbytes == len(data)
        return [json.loads(line) for line in data.splitlines()]


async def until(world: World, order: Order, completed: int) -> None:
    """Wait until the store says that so many are."""
    for _ in range(1000):
        if (await world.shown(order))["request_counts"]["completed"] >= completed:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{completed} lines are not answered")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_answers_and_errors_are_lines_of_two_files(world: World) -> None:
    bad = Reply(400, "x", json.dumps(ApiError("no", code="bad").body()).encode())
    world.reply = lambda body: bad if body["n"] == 1 else Reply(200, f"req{body['n']}", b'{"a":1}')
    order = await world.order(jsonl(*map(request, range(4))))
    assert (await world.shown(order))["status"] == "validating"
    await (await world.work(order)).run()
    shown = await world.shown(order)
    assert (shown["status"], shown["metadata"], shown["errors"]) == ("completed", {"a": "b"}, None)
    assert shown["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
    assert shown["completed_at"] == shown["in_progress_at"] == shown["created_at"] == 1_000_000
    output = {line["custom_id"]: line for line in await world.lines(shown["output_file_id"])}
    assert set(output) == {"r0", "r2", "r3"}
    assert output["r2"]["response"] == {"status_code": 200, "request_id": "req2", "body": {"a": 1}}
    assert output["r2"]["error"] is None
    [failed] = await world.lines(shown["error_file_id"])
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("r1", 400)
    assert failed["response"]["body"]["error"]["code"] == "bad"
    left = [entry.key for entry in await world.store.entries("")]
    assert not [key for key in left if "/answers/" in key or key.startswith("open/")]


@pytest.mark.parametrize(
    ("data", "codes"),
    [
        (b"", ["empty_file"]),
        (jsonl(request(0), request(0)), ["duplicate_custom_id"]),
        (jsonl(request(0), request(1, url="/v1/embeddings"), request(2, method="GET")), ["invalid_request"] * 2),
        (b"nonsense\n\xff\n" + jsonl(request(1, body=3), request(2, more=1)), ["invalid_request"] * 4),
        (jsonl(*map(request, range(9))), ["too_many_requests"]),
    ],
)
async def test_an_input_with_anything_wrong_is_refused(tmp_path: Path, data: bytes, codes: list[str]) -> None:
    world = World(tmp_path, lines=8)
    order = await world.order(data)
    await (await world.work(order)).run()
    shown = await world.shown(order)
    assert (shown["status"], world.asked) == ("failed", [])
    assert [fault["code"] for fault in shown["errors"]["data"]] == codes


async def test_a_line_that_is_answered_is_not_asked_again_by_the_next_holder(world: World) -> None:
    order = await world.order(jsonl(*map(request, range(12))))
    world.hold_from = 5
    first = asyncio.create_task((await world.work(order)).run())
    await world.held.wait()
    await until(world, order, 5)
    first.cancel()  # it neither releases its lease nor says anything
    await asyncio.wait([first])
    assert await world.claim(order, "other") is None, "the lease is not over yet"
    world.hold_from, before = 1 << 30, len(world.asked)
    await (await world.work(order)).run()  # a new process of the same gateway takes over at once
    assert sorted(world.asked[before:]) == list(range(5, 12))
    shown = await world.shown(order)
    output = await world.lines(shown["output_file_id"])
    assert sorted(line["custom_id"] for line in output) == sorted(f"r{n}" for n in range(12))
    assert shown["request_counts"] == {"total": 12, "completed": 12, "failed": 0}


async def test_what_a_former_holder_writes_late_counts_once(world: World) -> None:
    order = await world.order(jsonl(*map(request, range(3))))
    former, latter = await world.work(order), await world.work(order)
    results = await asyncio.gather(former.run(), latter.run(), return_exceptions=True)
    assert isinstance(results[0], LeaseLostError)
    assert results[1] is None
    output = await world.lines((await world.shown(order))["output_file_id"])
    assert sorted(line["custom_id"] for line in output) == ["r0", "r1", "r2"]


async def test_another_gateway_takes_over_a_lease_that_shows_no_life(world: World) -> None:
    order = await world.order(jsonl(request(0)))
    leases = BatchKeys("red", order.id).leases
    mine = await world.claim(order, "mine")
    assert mine is not None
    other = Leases(world.store, "other", 0.4, lambda: world.now)
    assert await other.claim(leases) is None
    world.now += 0.3
    await mine.renew()
    world.now += 0.3
    assert await other.claim(leases) is None, "it was renewed"
    world.now += 0.41
    taken = await other.claim(leases)
    assert taken is not None
    with pytest.raises(LeaseLostError):
        await mine.renew()
    await mine.release()
    assert await world.claim(order, "third") is None, "what a former holder releases is not the lease"
    await taken.release()
    both = await asyncio.gather(world.claim(order, "a"), world.claim(order, "b"))
    assert len([lease for lease in both if lease]) == 1


@pytest.mark.parametrize("state", ["expired", "cancelled"])
async def test_what_is_not_answered_when_the_time_is_over_says_so(world: World, state: str) -> None:
    order = await world.order(jsonl(*map(request, range(6))))
    world.hold_from = 2
    task = asyncio.create_task((await world.work(order)).run())
    await world.held.wait()
    if state == "expired":
        world.now += 86_400
    else:
        assert (await world.batches.cancel("red", order.id))["status"] in ("cancelling", "cancelled")
    await asyncio.wait_for(task, 10)
    shown = await world.shown(order)
    assert (shown["status"], shown[f"{state}_at"]) == (state, int(world.now))
    assert shown["request_counts"] == {"total": 6, "completed": 2, "failed": 4}
    errors = await world.lines(shown["error_file_id"])
    assert {(line["error"]["code"], line["response"]) for line in errors} == {(f"batch_{state}", None)}
    assert {line["custom_id"] for line in errors} == {"r2", "r3", "r4", "r5"}
    with pytest.raises(ApiError, match=state):
        await world.batches.cancel("red", order.id)


async def test_a_line_that_finds_no_room_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aegaeon_gateway.batches.work._AGAIN_S", (0.01, 0.02))
    order = await world.order(jsonl(request(0)))
    replies = [Reply(503, "x", b"", again_s=5.0), Reply(429, "x", b"", again_s=0.0), Reply(200, "x", b"{}")]
    world.reply = lambda _: replies.pop(0)
    await asyncio.wait_for((await world.work(order)).run(), 10)
    assert (await world.shown(order))["request_counts"]["completed"] == 1


async def test_a_line_whose_model_has_failed_gets_its_sentence_after_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aegaeon_gateway.batches.work._AGAIN_S", (0.0, 30.0))
    order = await world.order(jsonl(*map(request, range(3))))
    sentence = json.dumps(model_failed("m", "no weights").body()).encode()
    times = {0: 0, 1: 0}

    def reply(body: dict[str, Any]) -> Reply:
        if body["n"] == 2:
            return Reply(200, "x", b"{}")
        times[body["n"]] += 1
        world.now += 25
        return Reply(503, "x", sentence, again_s=0.0, failed=True)

    world.reply = reply
    await asyncio.wait_for((await world.work(order)).run(), 10)
    shown = await world.shown(order)
    assert shown["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    for line in await world.lines(shown["error_file_id"]):
        assert (line["response"]["status_code"], line["response"]["body"]["error"]["code"]) == (503, "model_failed")
        assert "no weights" in line["response"]["body"]["error"]["message"]
    assert 600 <= 25 * sum(times.values()) <= 700, "lines of a model share their patience"


async def test_files_of_a_purpose_fill_their_pages(world: World) -> None:
    inputs = []
    for number in range(3):
        order = await world.order(jsonl(request(number)))
        await (await world.work(order)).run()  # and a file of its answers
        inputs.append(order.input_file_id)
        world.now += 1
    first, more = await world.files.page("red", Cursor(2, newest_first=False), "batch")
    assert ([one.id for one in first], more) == (inputs[:2], True)
    last, more = await world.files.page("red", Cursor(2, after=first[-1].id, newest_first=False), "batch")
    assert ([one.id for one in last], more) == (inputs[2:], False)
    assert len((await world.files.page("red", Cursor(9), "batch_output"))[0]) == 3


async def test_a_batch_whose_input_is_deleted_fails(world: World) -> None:
    order = await world.order(jsonl(request(0)))
    await world.files.delete("red", order.input_file_id)
    await (await world.work(order)).run()
    shown = await world.shown(order)
    assert (shown["status"], shown["errors"]["data"][0]["code"]) == ("failed", "input_file_deleted")


async def test_lines_longer_than_a_block_are_read_whole(world: World) -> None:
    long = request(0, body={"n": 0, "text": "x" * (1 << 20) * 3})
    block = request(1)
    block["body"]["text"] = "y" * ((1 << 20) - 200)
    data = jsonl(block, long, request(2))
    order = await world.order(data)
    work = await world.work(order)
    await work.run()
    assert (await world.shown(order))["errors"]["data"][0]["code"] == "line_too_long"
    short = await world.order(jsonl(block, request(2)) + b"\n  \n" + jsonl(request(3))[:-1])
    await (await world.work(short)).run()
    output = await world.lines((await world.shown(short))["output_file_id"])
    assert {line["custom_id"] for line in output} == {"r1", "r2", "r3"}


async def test_files_go_when_their_time_is_over(world: World) -> None:
    order = await world.order(jsonl(request(0)))
    await (await world.work(order)).run()
    orphan, _ = await world.files.receive("red", pieces(b"of a process that was killed"))
    shown = await world.shown(order)
    world.now += 3601
    with pytest.raises(ApiError, match="No such file"):
        await world.files.get("red", shown["output_file_id"])
    assert (await world.files.get("red", order.input_file_id)).purpose == "batch"
    for _ in range(2):
        await world.files.sweep()
        keys = [entry.key for entry in await world.store.entries("files")]
        assert any(shown["output_file_id"] in key for key in keys) == any(orphan in key for key in keys)
    assert len(keys) == 2
    world.now += world.settings.keep_s + 86_400
    over: set[str] = set()
    for _ in range(2):
        await world.files.sweep()
        over = await sweep_batches(world.tools(Throttle(1)), over)
    assert await world.store.entries("") == []


async def test_a_tenant_has_so_many_files_bytes_and_batches(tmp_path: Path) -> None:
    world = World(tmp_path, tenant_files=3, tenant_bytes=300, tenant_batches=1, file_bytes=200)
    first = await world.upload(jsonl(request(0)))
    with pytest.raises(ApiError) as raised:
        await world.upload(b"x" * 201)
    assert raised.value.status == 413
    assert [entry for entry in await world.store.entries("files") if first not in entry.key] == []
    with pytest.raises(ApiError, match="bytes of files"):
        await asyncio.gather(world.upload(b"y" * 200), world.upload(b"z" * 190))
    await world.batches.create("red", CHATS, first, "24h", 3600, None)
    with pytest.raises(ApiError, match="not over") as many:
        await world.batches.create("red", CHATS, first, "24h", 3600, None)
    assert many.value.status == 429


def test_slots_fall_fast_under_pressure_and_rise_slowly_without() -> None:
    assert next_limit(8, 32, full=True, pressure=Pressure()) == 9
    assert next_limit(8, 8, full=True, pressure=Pressure()) == 8
    assert next_limit(8, 32, full=False, pressure=Pressure()) == 8
    for online in (Pressure(late=1), Pressure(waiting=1)):
        assert next_limit(8, 32, full=True, pressure=online) == 4
        assert next_limit(1, 32, full=True, pressure=online) == 0
    assert next_limit(0, 32, full=True, pressure=Pressure()) == 1
    assert next_limit(1, 32, full=True, pressure=Pressure(refused=3)) == 1
    assert next_limit(8, 32, full=True, pressure=Pressure(kv_used=0.95)) == 7


async def test_no_more_slots_are_taken_than_the_limit() -> None:
    throttle, inside, most = Throttle(3), 0, 0

    async def one() -> None:
        nonlocal inside, most
        async with throttle.slot():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    tasks = [asyncio.create_task(one()) for _ in range(40)]
    await asyncio.sleep(0)
    tasks[-1].cancel()
    for _ in range(5):
        await throttle.tick(Pressure())
    await asyncio.wait(tasks)
    throttle.check()
    assert 1 <= most <= 3


def test_ids_sort_by_time_and_pages_follow_each_other() -> None:
    ids = [new_id("batch_", 1000.0 + n) for n in range(5)]
    assert sorted(ids) == ids
    assert {len(id_) for id_ in ids} == {len("batch_") + 32}
    assert page(ids, Cursor(2)) == ([ids[4], ids[3]], True)
    assert page(ids, Cursor(2, ids[3])) == ([ids[2], ids[1]], True)
    assert page(ids, Cursor(2, ids[1])) == ([ids[0]], False)
    assert page(ids, Cursor(2, ids[2], newest_first=False)) == ([ids[3], ids[4]], False)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, "batches: give exactly one of folder and s3"),
        ({"folder": "/x", "s3": {"bucket": "b"}}, "batches: give exactly one of folder and s3"),
        ({"folder": "/x", "lines": 0}, "batches.lines: "),
        ({"folder": "/x", "more": 0}, "batches.more: unknown key"),
    ],
)
def test_wrong_settings_are_refused_by_name(tmp_path: Path, settings: dict[str, Any], fault: str) -> None:
    addresses = {"name": "g", "listen": "127.0.0.1:0", "scheduler": "unix:s", "sink": "unix:t"}
    (file := tmp_path / "gateway.json").write_text(json.dumps({**addresses, "batches": settings}))
    with pytest.raises(ConfigError, match=fault):
        load_config(file)
    file.write_text(json.dumps({**addresses, "batches": {"folder": "/x"}}))
    assert load_config(file).batches == BatchSettings(folder="/x")
