"""Tokenizers by content: models of equal files share what is loaded, a bound holds, what workers use stays."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import aiohttp
import pytest
from gateway.conftest import gateway_config
from gateway.peer import Peer
from gateway.test_texts import tokens_of

from aegaeon_gateway.config import GatewayConfig
from aegaeon_gateway.models.texts import Texts
from aegaeon_gateway.run import serve
from aegaeon_gateway.workers.files import digest, read_texts, tokenizer_of
from aegaeon_gateway.workers.pool import WorkerPool
from aegaeon_gateway.workers.supervisor import Starter
from aegaeon_proto.v1.gateway_pb2 import ModelStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase, ModelSource, ModelSpec


def copied(model: Path, to: Path, **config: object) -> Path:
    """The same tokenizer, below another name; `config`: what config.json says differently."""
    folder = Path(shutil.copytree(model, to))
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | config))
    return folder


def source(folder: Path) -> ModelSource:
    return ModelSource(directory=str(folder))


async def test_models_of_equal_files_are_one_text_and_a_tokenizer_of_several_is_there_once(
    model_directory: Path, tmp_path: Path, workers: WorkerPool
) -> None:
    model = copied(model_directory, tmp_path / "model")
    texts = Texts(workers)
    first = await texts.get(source(model))
    alone = texts._contents.nbytes
    twin = await texts.get(source(copied(model, tmp_path / "twin")))
    assert twin is first
    tuned = await texts.get(source(copied(model, tmp_path / "tuned", max_position_embeddings=96)))
    assert (tuned.key == first.key, tuned.vocabulary is first.vocabulary) == (False, True)
    assert (first.max_positions, tuned.max_positions) == (texts.max_positions(source(model)), 96)
    assert texts._contents.nbytes - alone <= 2 << 20
    for folder in ("model", "twin", "tuned"):
        tokens, _ = await tokens_of(workers, texts, tmp_path / folder)
        detokenizer = tuned.vocabulary.detokenizer()
        assert "".join(map(detokenizer.feed, tokens)) + detokenizer.flush() == "quick fox"


async def test_what_was_used_longest_ago_makes_room_unless_it_is_in_use_and_comes_back_when_it_is_asked_for(
    model_directory: Path, tmp_path: Path, workers: WorkerPool
) -> None:
    texts = Texts(workers, most_bytes=1)  # room for the newest alone
    folders = [copied(model_directory, tmp_path / f"{size}", max_position_embeddings=size) for size in (64, 65, 66)]
    one, two, three = map(source, folders)
    kept = await texts.get(one)
    with texts.used(kept):
        dropped = await texts.get(two)
        await texts.get(three)
        assert texts._contents.find(kept.key) is kept
        assert texts._contents.find(dropped.key) is None
    again = await texts.get(two)
    assert again.key == dropped.key
    assert texts._contents.find(kept.key) is None
    tokens, _ = await tokens_of(workers, texts, folders[1])
    assert tokens


async def test_nothing_is_loaded_before_a_request_and_what_leaves_the_catalog_is_dropped(
    model_directory: Path, workers: WorkerPool
) -> None:
    texts = Texts(workers)
    status = ModelStatus(spec=ModelSpec(name="m", source=source(model_directory)), phase=ModelPhase.MODEL_PHASE_CACHED)
    texts.keep([status])
    assert not texts._loading
    text = await texts.get(status.spec.source)
    texts.keep([])
    assert texts._contents.find(text.key) is None


@pytest.mark.parametrize(
    ("name", "of_tokenizer"),
    [("tokenizer.json", True), ("chat_template.jinja", True), ("generation_config.json", False)],
)
def test_hashes_change_with_what_they_are_of(
    model_directory: Path, tmp_path: Path, name: str, of_tokenizer: bool
) -> None:
    folder = Path(shutil.copytree(model_directory, tmp_path / "model"))
    before = digest(read_texts(folder)), tokenizer_of(folder)
    with (folder / name).open("a") as file:
        file.write(" ")
    assert digest(read_texts(folder)) != before[0]
    assert (tokenizer_of(folder) != before[1]) is of_tokenizer


async def test_a_change_of_the_catalog_at_any_moment_of_a_load_leaves_requests_the_text_they_wait_for(
    model_directory: Path, workers: WorkerPool
) -> None:
    texts = Texts(workers)
    status = ModelStatus(spec=ModelSpec(name="m", source=source(model_directory)), phase=ModelPhase.MODEL_PHASE_CACHED)
    requests = [asyncio.create_task(tokens_of(workers, texts, model_directory)) for _ in range(2)]
    while not all(request.done() for request in requests):
        texts.keep([status])  # in every step of the loop, as when an engine ends meanwhile
        await asyncio.sleep(0)
    first, second = [request.result()[0] for request in requests]
    assert first == second != []


async def test_a_request_whose_text_is_dropped_before_a_worker_has_the_job_is_answered(
    peer: Peer, start_workers: Starter
) -> None:
    async with serve(GatewayConfig(**gateway_config(peer)), start_workers) as served, aiohttp.ClientSession() as http:

        async def complete() -> tuple[int, str]:
            body = {"model": "tiny", "prompt": "hi", "max_tokens": 2}
            async with http.post(f"http://127.0.0.1:{served.port}/v1/completions", json=body) as response:
                return response.status, await response.text()

        request = asyncio.create_task(complete())
        while not served.texts._contents._uses:  # noqa: ASYNC110 - the very step in which the job is passed on
            await asyncio.sleep(0)
        models = served.catalog.models()
        for listed in ([], models):
            served.catalog.update(listed)
        status, text = await request
    assert status == 200, text
