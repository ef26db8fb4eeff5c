"""Batches whose client, gateway or store ends half-way: the real store in a folder, as slow as a test says."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec
import openai
import pytest
from gateway.test_batch_work import CHATS, World, jsonl, request
from gateway.test_batches import chat, client_of, over, pools
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore
from sidecar.mounts import small_tmpfs

from aegaeon_gateway.batches.answers import Answers
from aegaeon_gateway.batches.keys import CONTENT, RECORD, BatchKeys
from aegaeon_gateway.batches.records import Order
from aegaeon_gateway.batches.runner import BatchRunner, sweep_batches
from aegaeon_gateway.batches.settings import BatchSettings
from aegaeon_gateway.batches.store import Store, open_store
from aegaeon_gateway.batches.throttle import Pressure, Throttle
from aegaeon_gateway.errors import UnavailableError
from aegaeon_proto.outbound.egress import DIRECT, Egress

__all__ = ["pools"]  # a fixture


class Slow(LocalStore):
    """A store's client whose writes of some keys take `seconds`; like the real one it ends what was begun, cancelled
    or not."""

    @classmethod
    def under(cls, store: Store, of: Callable[[str], bool], seconds: float = 0.0) -> Self:
        """In the place of the client that the store has."""
        assert isinstance(store._objects, LocalStore)
        slow = cls(store._objects.prefix)
        slow.of, slow.seconds = of, seconds
        slow.begun, slow.landed = asyncio.Event(), asyncio.Event()
        slow.former, store._objects = store._objects, slow
        return slow

    of: Callable[[str], bool]
    seconds: float
    begun: asyncio.Event
    landed: asyncio.Event
    former: LocalStore

    async def put_async(self, key: str, data: Any, **how: Any) -> Any:  # type: ignore[override]  # a part is enough
        if not self.of(key):
            return await super().put_async(key, data, **how)
        return await asyncio.shield(asyncio.ensure_future(self.late(key, data, how)))

    async def late(self, key: str, data: Any, how: dict[str, Any]) -> None:
        self.begun.set()
        await asyncio.sleep(self.seconds)
        await self.former.put_async(key, data, **how)
        self.landed.set()


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[Store]:
    """Those that gateways open."""
    opened: list[Store] = []

    def opening(settings: BatchSettings, egress: Egress = DIRECT) -> Store:
        opened.append(open_store(settings, egress))
        return opened[-1]

    monkeypatch.setattr("aegaeon_gateway.batches.kept.open_store", opening)
    return opened


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_write_that_is_cancelled_is_over_when_its_caller_goes_on(tmp_path: Path) -> None:
    """It would land behind what its caller writes next."""
    world = World(tmp_path)
    slow = Slow.under(world.store, lambda key: key == "one", 0.05)
    task = asyncio.create_task(world.store.put("one", b"former"))
    await slow.begun.wait()
    await cancelled(task)
    world.store._objects = slow.former
    await world.store.put("one", b"latter")
    await slow.landed.wait()
    assert await world.store.get("one") == b"latter"


async def test_answers_whose_write_failed_and_landed_late_are_not_lost(tmp_path: Path) -> None:
    """A bucket that answers too late has taken the segment all the same, after the next one was written."""
    world, landed = World(tmp_path), []

    class TimedOut(Slow):
        async def late(self, key: str, data: Any, how: dict[str, Any]) -> None:
            landed.append((key, bytes(data)))
            raise OSError("timed out")

    answers = Answers(world.store, "answers", 1)
    slow = TimedOut.under(world.store, bool, 0.0)
    answers.add(0, True, b'"first"')
    with pytest.raises(UnavailableError):
        await answers.flush()
    world.store._objects = slow.former
    answers.add(1, True, b'"second"')
    assert await answers.flush()
    for key, data in landed:
        await world.store.put(key, data)
    found = [line async for line in answers.lines(await answers.snapshot(), True)]
    assert found == [b'"first"\n', b'"second"\n']


@pytest.mark.parametrize("written", [0, 1])
async def test_a_batch_that_was_ordered_half_way_runs_or_is_none(tmp_path: Path, written: int) -> None:
    """Its gateway is killed after so many writes: a batch that is listed and never worked on would wait for ever."""
    world = World(tmp_path)
    file = await world.upload(jsonl(request(0)))
    before = iter(range(written))
    slow = Slow.under(world.store, lambda key: next(before, None) is None, 3600.0)
    killed = asyncio.create_task(world.batches.create("red", CHATS, file, "24h", 3600, None))
    await slow.begun.wait()
    store = open_store(world.settings)  # of the next process
    listed = await store.folders("batches/")
    opened = await store.entries("open")
    assert len(listed) <= len(opened), "no gateway works on what is listed"
    world.store._objects = slow.former
    for entry in opened:
        data = await store.get(entry.key)
        order = msgspec.json.decode(data or b"", type=Order)
        await (await world.work(order)).run()
        assert (await world.shown(order))["status"] == "completed"
    assert not await store.entries("open")
    killed.cancel()


async def test_the_end_of_a_batch_that_was_sent_twice_keeps_its_files(tmp_path: Path) -> None:
    """The store's client repeats a request whose answer was lost, and receives that the object is there."""
    world = World(tmp_path)
    order = await world.order(jsonl(request(0)))

    class Repeating(Slow):
        async def late(self, key: str, data: Any, how: dict[str, Any]) -> None:
            await self.former.put_async(key, data, **how)
            raise AlreadyExistsError(key)

    Repeating.under(world.store, lambda key: key.endswith("/end.json"), 0.0)
    await (await world.work(order)).run()
    shown = await world.shown(order)
    assert shown["status"] == "completed"
    assert len(await world.lines(shown["output_file_id"])) == 1


FORM = (
    b"--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
    b"--b\r\nContent-Disposition: form-data; name=file; filename=night.jsonl\r\n\r\n%b\r\n--b--\r\n"
)


async def leaves(pool: Any, path: str, kind: str, body: bytes, when: asyncio.Event) -> None:
    """A client that sends a request and resets its connection then."""
    _, writer = await asyncio.open_connection("127.0.0.1", pool.served.port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-red\r\nContent-Type: {kind}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await when.wait()
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def test_an_upload_whose_client_leaves_at_its_end_leaves_a_whole_file_or_none(
    pools: Any, stores: list[Store]
) -> None:
    async with pools() as pool, client_of(pool) as client:
        slow = Slow.under(stores[0], lambda key: key.startswith("files/") and key.endswith(RECORD), 0.5)
        form = FORM % jsonl(chat(0))
        await leaves(pool, "/v1/files", "multipart/form-data; boundary=b", form, slow.begun)
        await slow.landed.wait()
        await asyncio.sleep(0.2)  # what comes behind the write, if anything does, needs time in which it could
        listed = {file.id for file in (await client.files.list()).data}
        keys = [entry.key for entry in await stores[0].entries("files")]
        whole = {Path(key).name.removesuffix(CONTENT) for key in keys if key.endswith(CONTENT)}
        assert listed <= whole, "a file without its content"


async def test_a_batch_whose_client_leaves_while_it_is_made_ends_like_any_other(
    pools: Any, stores: list[Store]
) -> None:
    async with pools() as pool, client_of(pool) as client:
        file = await client.files.create(file=("night.jsonl", jsonl(chat(0))), purpose="batch")
        slow = Slow.under(stores[0], lambda key: key.endswith("/order.json"), 0.5)
        asked = {"input_file_id": file.id, "endpoint": CHATS, "completion_window": "24h"}
        await leaves(pool, "/v1/batches", "application/json", json.dumps(asked).encode(), slow.begun)
        await slow.landed.wait()
        stores[0]._objects = slow.former
        [batch] = (await client.batches.list()).data
        assert (await over(client, batch.id)).status == "completed"


async def test_a_download_of_a_file_that_is_deleted_meanwhile_is_cut_off(pools: Any, stores: list[Store]) -> None:
    """Fewer bytes than the header promised: who waits for the others would wait for ever."""
    async with pools() as pool, client_of(pool) as client:
        file = await client.files.create(file=("night.jsonl", jsonl(chat(0))), purpose="batch")
        [content] = [entry.key for entry in await stores[0].entries("files") if entry.key.endswith(CONTENT)]
        await stores[0].delete(content)
        with pytest.raises(openai.APIConnectionError):
            async with asyncio.timeout(10):
                await client.files.content(file.id)


async def test_a_gateway_forgets_the_leases_of_batches_that_others_have_ended(tmp_path: Path) -> None:
    world = World(tmp_path)
    others = BatchRunner(world.tools(Throttle(1)), "other", Pressure, asyncio.Event())
    order = await world.order(jsonl(request(0)))
    work = await world.work(order)
    await others._look()
    assert list(others._leases._seen) == [BatchKeys("red", order.id).leases]
    await work.run()
    await others._look()
    assert not others._leases._seen


async def test_a_clock_that_is_set_ahead_and_back_ends_no_batch_and_removes_no_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    order = await world.order(jsonl(*map(request, range(6))))
    work = await world.work(order)
    world.hold_from = 2
    task = asyncio.create_task(work.run())
    await world.held.wait()
    world.set_s = 100 * 86_400.0
    await world.files.sweep()
    over = await sweep_batches(world.tools(Throttle(1)), set())
    assert (await asyncio.wait([task], timeout=0.3))[1], "it goes on"
    world.set_s = 0.0
    await world.files.sweep()
    await sweep_batches(world.tools(Throttle(1)), over)
    assert (await world.shown(order))["status"] == "in_progress"
    assert (await world.files.get("red", order.input_file_id)).purpose == "batch"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_store_that_is_full_says_so_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", "512k") as small:
        world = World(small)
        filler = small / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b" " * 4096)
                file.flush()
        with pytest.raises(UnavailableError, match="store of files and batches is full"):
            await world.upload(jsonl(request(0)))
        filler.unlink()
        await (await world.work(await world.order(jsonl(request(0))))).run()


def test_what_a_killed_gateway_had_half_written_is_removed_and_what_is_being_written_is_not(
    tmp_path: Path,
) -> None:
    """The real store leaves it: its process is killed in the middle of an upload."""
    world = World(tmp_path)
    asyncio.run(world.upload(jsonl(request(0))))
    killed = subprocess.run([sys.executable, "-c", _UPLOAD_AND_DIE, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.rglob("*#*")
    asyncio.run(world.files.sweep())
    with left.open("ab") as written:
        written.write(b" ")
    asyncio.run(world.files.sweep())
    assert left.exists(), "another gateway may write it"
    asyncio.run(world.files.sweep())
    assert not left.exists()
    assert len(list(tmp_path.rglob("*.data"))) == 1


_UPLOAD_AND_DIE = """
import asyncio, os, signal, sys
from collections.abc import AsyncIterator
from pathlib import Path
from obstore.store import LocalStore
from aegaeon_gateway.batches.store import Store

async def pieces() -> AsyncIterator[bytes]:
    for _ in range(4):
        yield b" " * (6 << 20)
    while not [*Path(sys.argv[1]).rglob("*#*")]:
        await asyncio.sleep(0.01)  # a part is written while the next is made
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(Store(LocalStore(sys.argv[1])).upload("files/red/one.data", pieces()))
"""
