"""Lanes, the fork server and its processes, whatever ends at the worst moment."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from gateway.forks import working

from aegaeon_gateway.errors import TokenizerError, UnavailableError
from aegaeon_gateway.models.texts import Texts
from aegaeon_gateway.models.vocabulary import TokenTable
from aegaeon_gateway.workers.bounds import ADDED_TOKENS, check_added, check_decoder
from aegaeon_gateway.workers.client import Worker
from aegaeon_gateway.workers.fair import Share
from aegaeon_gateway.workers.lane import Lane, LaneConfig
from aegaeon_gateway.workers.pool import WorkerPool
from aegaeon_gateway.workers.supervisor import Starter, Stopped, start_process
from aegaeon_gateway.workers.wire import Job, Limit, Loaded, Message, Peek, Peeked, Reply
from aegaeon_proto.v1.gateway_pb2 import ModelStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase, ModelSource, ModelSpec

BODY = b'{"model":"m","prompt":"quick fox"}'
Recorded = tuple[WorkerPool, list[socket.socket]]


class Fake(Worker):
    """Answers at once; `ends` is called when it is killed, as it is after its job."""

    def __init__(self, ends: Callable[[], object]) -> None:
        here, there = socket.socketpair()
        there.close()
        super().__init__(here, 1)
        self._ends = ends

    async def ready(self) -> None:
        return

    async def do(self, message: Message, body: bytes | bytearray) -> tuple[Reply, bytes]:
        return Peeked("m"), b""

    def kill(self) -> None:
        self._ends()
        super().kill()


async def test_a_job_cancelled_as_it_starts_frees_its_worker() -> None:
    loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[object]]()
    worker = Fake(lambda: loop.call_soon(tasks[1].cancel))  # between the end of the first and the turn of the second
    lane = Lane(
        LaneConfig(1, Limit(1.0, 1 << 20), 60.0, once=True, low=False, waiting=9, waiting_each=9),
        lambda order: worker,
        lambda: 1,
    )
    job = lane.do(Share("a", "m"), Job(b"", "chat", "m", 0), b"")
    tasks += [asyncio.create_task(job), asyncio.create_task(lane.do(Share("a", "m"), Peek(), b""))]
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.01)
    assert tasks[1].cancelled()
    lane.check()
    await lane.stop()


async def test_a_fork_server_needed_by_many_is_started_once(recorded: Recorded) -> None:
    workers, ends = recorded
    assert await asyncio.gather(*(workers.names_of("me", BODY) for _ in range(8))) == [("m", "")] * 8
    await asyncio.gather(*(workers.start() for _ in range(8)))
    assert len(ends) == 1


async def test_a_load_waiting_while_the_fork_server_ends_is_asked_to_retry(
    model_directory: Path, start_workers: Starter
) -> None:
    ends: list[socket.socket] = []

    async def stopped() -> None:
        return

    async def start(sock: socket.socket) -> Stopped:
        ends.append(sock.dup())
        return await start_workers(sock) if len(ends) > 1 else stopped  # the first one answers nothing

    async with working(start) as workers:
        await workers.start()
        ends[0].setblocking(False)
        load = asyncio.create_task(workers.load(b"m", str(model_directory)))
        await asyncio.get_running_loop().sock_recv(ends[0], 1)
        ends[0].shutdown(socket.SHUT_RD)  # no order reaches it any more, and the load's answer may still come
        assert await workers.names_of("me", BODY) == ("m", "")
        async with asyncio.timeout(10):
            with pytest.raises(UnavailableError):
                await load
        await workers.load(b"m", str(model_directory))
        await workers.prepare("me", Job(b"m", "completions", "m", 0), BODY)
        assert len(ends) == 2
    for end in ends:
        end.close()


async def test_a_model_whose_files_were_lost_with_the_fork_server_is_loaded_again(
    model_directory: Path, own_model: Path, recorded: Recorded
) -> None:
    workers, ends = recorded
    texts, source = Texts(workers), ModelSource(directory=str(own_model))
    job = Job((await texts.get(source)).key, "completions", "m", 0)
    shutil.rmtree(own_model)
    ends[0].shutdown(socket.SHUT_RDWR)
    await workers.prepare("me", job, BODY)  # from the gateway's own copy
    shutil.rmtree(texts._contents._place(job.key))
    ends[1].shutdown(socket.SHUT_RDWR)
    async with asyncio.timeout(30):
        with pytest.raises(TokenizerError, match="no such folder"):
            await prepare_again_and_again(workers, job)  # a worker of the ended one may answer until it ends as well
    shutil.copytree(model_directory, own_model)
    texts.forget(source)
    await texts.get(source)
    await workers.prepare("me", job, BODY)


async def prepare_again_and_again(workers: WorkerPool, job: Job) -> None:
    while True:
        await workers.prepare("me", job, BODY)


async def test_a_job_for_a_dropped_model_is_asked_to_retry(model_directory: Path, workers: WorkerPool) -> None:
    text = await Texts(workers).get(ModelSource(directory=str(model_directory)))
    workers.drop(text.key)
    with pytest.raises(UnavailableError):
        await workers.prepare("me", Job(text.key, "completions", "m", 0), BODY)
    workers._supervisor._present.add(text.key)  # as when it is dropped while the job waits
    with pytest.raises(UnavailableError) as refused:
        await workers.prepare("me", Job(text.key, "completions", "m", 0), BODY)
    assert str(model_directory) not in refused.value.message


async def until_loading(workers: WorkerPool) -> None:
    """The fork server has been asked to load a model and has not answered."""
    while not workers._supervisor._loading.locked():  # noqa: ASYNC110 - an asyncio.Lock announces nothing to those who do not want it
        await asyncio.sleep(0)


async def test_a_model_dropped_while_another_is_loaded_is_dropped_from_the_new_fork_server_too(
    model_directory: Path, own_model: Path, workers: WorkerPool
) -> None:
    one = await Texts(workers).get(ModelSource(directory=str(model_directory)))
    other = asyncio.create_task(workers.load(b"other", str(own_model)))
    await until_loading(workers)
    workers.drop(one.key)
    await other
    workers._supervisor._present.add(one.key)  # as if it were known: a worker that has it would serve it
    with pytest.raises(UnavailableError):
        await workers.prepare("me", Job(one.key, "completions", "m", 0), BODY)


def status_of(source: ModelSource) -> ModelStatus:
    return ModelStatus(spec=ModelSpec(name="m", source=source), phase=ModelPhase.MODEL_PHASE_FETCHING, wait=True)


async def test_a_model_added_again_while_it_is_loaded_stays_loaded(model_directory: Path, workers: WorkerPool) -> None:
    texts, source = Texts(workers), ModelSource(directory=str(model_directory))
    texts.keep([status_of(source)])
    first = asyncio.create_task(texts.get(source))
    await until_loading(workers)
    texts.keep([])
    texts.keep([status_of(source)])
    second = asyncio.create_task(texts.get(source))
    text, _ = await asyncio.gather(second, first)
    await workers.prepare("me", Job(text.key, "completions", "m", 0), BODY)


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def family(pid: int) -> set[int]:
    """All processes below one."""
    found = set()
    for child in children(pid):
        with suppress(FileNotFoundError):  # it has ended meanwhile
            found |= {child} | family(child)
    return found


async def test_no_process_is_left_of_replaced_fork_servers(model_directory: Path, tmp_path: Path) -> None:
    own = family(os.getpid())
    async with working(start_process) as workers:
        texts = Texts(workers)
        for number in range(3):
            folder = shutil.copytree(model_directory, tmp_path / f"{number}")
            (folder / "generation_config.json").write_text(f'{{"top_k": {number + 1}}}')  # equal ones are loaded once
            text = await texts.get(ModelSource(directory=str(folder)))
            await workers.prepare("me", Job(text.key, "completions", "m", 0), BODY)
        assert len(children(os.getpid()) - own) == 1
    assert not family(os.getpid()) - own


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
async def test_a_pipe_among_a_models_files_fails_that_model_at_once(
    own_model: Path, workers: WorkerPool, name: str
) -> None:
    (own_model / name).unlink(missing_ok=True)
    os.mkfifo(own_model / name)
    with pytest.raises(TokenizerError, match="no file"):
        await Texts(workers).get(ModelSource(directory=str(own_model)))


async def test_an_unsupported_decoder_fails_before_a_fork_server_takes_over(
    own_model: Path, workers: WorkerPool
) -> None:
    definition = json.loads((own_model / "tokenizer.json").read_text())
    parts = [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "do"}, "content": "at"}]
    definition["decoder"] = {"type": "Sequence", "decoders": parts}
    (own_model / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(TokenizerError, match="Replace behind a Fuse"):
        await workers.load(b"m", str(own_model))


async def test_a_tokenizer_of_more_tokens_than_the_model_knows_fails_that_model(
    own_model: Path, workers: WorkerPool
) -> None:
    config = json.loads((own_model / "config.json").read_text())
    tokens = len(json.loads((own_model / "tokenizer.json").read_text())["model"]["vocab"])
    (own_model / "config.json").write_text(json.dumps(config | {"vocab_size": tokens}))
    await workers.load(b"m", str(own_model))
    (own_model / "config.json").write_text(json.dumps({"text_config": config | {"vocab_size": tokens - 1}}))
    with pytest.raises(TokenizerError, match=rf"has {tokens} tokens and the model knows {tokens - 1}"):
        await workers.load(b"n", str(own_model))


def test_a_decoder_with_a_long_description_is_refused() -> None:
    with pytest.raises(TokenizerError, match="bytes"):
        check_decoder({"type": "Replace", "pattern": {"String": "a" * 10**6}, "content": "b"})


def test_many_added_tokens_are_refused_and_some_cost_little() -> None:
    count = 20_000
    ends = array("I", range(0, 2 * count + 2, 2)).tobytes()
    loaded = Loaded(b"", ends, list(range(count)), list(range(count)), "null", 0)
    began = time.thread_time()
    table = TokenTable(loaded, b"ab" * count)
    assert time.thread_time() - began < 2  # a set for each token took 5 s
    assert table.id_to_token(count - 1) == "ab"
    with pytest.raises(TokenizerError):
        check_added(ADDED_TOKENS + 1)
