"""Tokenizers of several models, loaded one after another by a fork server of its own."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from gateway.forks import working

from aegaeon_gateway.errors import TokenizerError
from aegaeon_gateway.models.texts import Texts
from aegaeon_gateway.request.prompt import Prompt
from aegaeon_gateway.workers.pool import WorkerPool
from aegaeon_gateway.workers.supervisor import start_process
from aegaeon_gateway.workers.wire import Job
from aegaeon_proto import process_limits as limits
from aegaeon_proto.v1.gateway_pb2 import ModelStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase, ModelSource, ModelSpec, Sampling


async def tokens_of(workers: WorkerPool, texts: Texts, folder: Path, **body: object) -> tuple[list[int], Sampling]:
    text = await texts.get(ModelSource(directory=str(folder)))
    whole = json.dumps({"model": "m", "prompt": "quick fox", "max_tokens": 4, **body}).encode()
    done, tail = await workers.prepare("me", Job(text.key, "completions", "m", 0), whole)
    return list(Prompt(*done.tokens, tail).ids), Sampling.FromString(done.sampling)


async def test_files_that_fail_before_engines_have_them_are_tried_again_at_once_when_engines_do(
    tmp_path: Path, workers: WorkerPool
) -> None:
    source = ModelSource(directory=str(tmp_path / "none"))
    status = ModelStatus(spec=ModelSpec(name="m", source=source), phase=ModelPhase.MODEL_PHASE_FETCHING)
    reported: list[tuple[str, str]] = []
    texts = Texts(workers)
    texts.report = lambda name, reason: reported.append((name, reason))
    texts.keep([status])
    with pytest.raises(TokenizerError):
        await texts.get(source)
    assert texts.failure(source)
    assert not reported
    status.phase = ModelPhase.MODEL_PHASE_CACHED
    texts.keep([status])
    assert not texts.failure(source)
    with pytest.raises(TokenizerError):
        await texts.get(source)
    assert reported == [("m", texts.failures()["m"])]


async def test_a_failure_is_reported_of_the_names_that_have_the_source_now(
    model_directory: Path, tmp_path: Path, workers: WorkerPool
) -> None:
    broken, works = (ModelSource(directory=str(folder)) for folder in (tmp_path / "none", model_directory))

    def cached(name: str, source: ModelSource) -> ModelStatus:
        return ModelStatus(spec=ModelSpec(name=name, source=source), phase=ModelPhase.MODEL_PHASE_CACHED)

    texts, reported = Texts(workers), dict[str, str]()
    texts.report = reported.__setitem__
    texts.keep([cached("m", broken)])
    with pytest.raises(TokenizerError):
        await texts.get(broken)
    assert reported["m"]
    texts.keep([cached("m", works), cached("renamed", broken)])
    await texts.get(works)
    assert reported["m"] == ""
    assert reported["renamed"]
    texts.keep([cached("m", works)])
    assert reported == {"m": "", "renamed": ""}
    await texts.stop()


@pytest.fixture
def orphans() -> Iterator[Callable[[], list[str]]]:
    """Processes that began in this test and ended below this one, unwaited for: process 1 of a pod would have them."""
    limits.become_subreaper()
    begun = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    yield lambda: [stat for stat in _stats() if _is_orphan(stat, begun)]
    ctypes.CDLL(None).prctl(36, 0)  # PR_SET_CHILD_SUBREAPER


def _stats() -> Iterator[str]:
    """/proc/PID/stat of every process."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ends while it is looked at
            yield path.read_text()


def _is_orphan(stat: str, begun: int) -> bool:
    """`begun`: in ticks since boot. What began before is what earlier tests have left."""
    state, parent, *_ = fields = stat.rpartition(")")[2].split()
    return state == "Z" and int(parent) == os.getpid() and int(fields[19]) >= begun


async def test_tokenizers_of_four_models_load_concurrently_and_leave_no_zombies(
    tiny_models: dict[str, Path], orphans: Callable[[], list[str]]
) -> None:
    async with working(start_process) as workers:
        texts = Texts(workers)
        sources = [ModelSource(directory=str(path)) for path in tiny_models.values()]
        loaded = await asyncio.gather(*map(texts.get, sources))
        for text, folder in zip(loaded, tiny_models.values(), strict=True):
            tokens, _ = await tokens_of(workers, texts, folder)
            detokenizer = text.vocabulary.detokenizer()
            assert "".join(map(detokenizer.feed, tokens)) + detokenizer.flush() == "quick fox"
    assert orphans() == []


async def test_fork_servers_that_are_replaced_one_after_the_other_leave_no_zombies_in_a_pod(
    tiny_models: dict[str, Path], orphans: Callable[[], list[str]]
) -> None:
    async with working(start_process) as workers:
        texts = Texts(workers)
        for path in tiny_models.values():
            await texts.get(ModelSource(directory=str(path)))
    assert orphans() == []


async def test_sampling_parameters_default_to_those_of_the_model(
    tiny_models: dict[str, Path], tmp_path: Path, workers: WorkerPool
) -> None:
    directory = Path(shutil.copytree(tiny_models["llama"], tmp_path / "model"))
    (directory / "generation_config.json").write_text('{"temperature": 0.25, "top_k": 7, "top_p": null}')
    _, sampling = await tokens_of(workers, Texts(workers), directory, top_k=3)
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.25, 3, 1.0)


async def test_a_fork_server_that_has_ended_is_started_anew_and_knows_its_models(
    model_directory: Path, recorded: tuple[WorkerPool, list[socket.socket]]
) -> None:
    workers, ends = recorded
    texts = Texts(workers)
    before, _ = await tokens_of(workers, texts, model_directory)
    ends[0].shutdown(socket.SHUT_RDWR)
    for padding in ("", "x" * 100_000):  # for either lane
        after, _ = await tokens_of(workers, texts, model_directory, user=padding)
        assert after == before
    assert len(ends) == 2


async def test_the_tokenizer_of_a_failed_model_is_loaded_again_when_it_is_repaired(
    own_model: Path, workers: WorkerPool
) -> None:
    texts = Texts(workers)
    status = ModelStatus(spec=ModelSpec(name="m", source=ModelSource(directory=str(own_model))))
    assert (await texts.get(status.spec.source)).max_positions == 256
    (own_model / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 512}')
    for phase in (ModelPhase.MODEL_PHASE_FETCHING, ModelPhase.MODEL_PHASE_FAILED):
        assert (await texts.get(status.spec.source)).max_positions == 256
        status.phase = phase
        texts.keep([status])
    assert (await texts.get(status.spec.source)).max_positions == 512


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ('{"top_k": 1' + "0" * 400 + "}", "top_k must be a number from 0 to"),
        ('{"top_k": 1' + "0" * 5000 + "}", "not valid JSON"),
        ('{"top_k": 5.5}', "top_k must be an integer"),
        ('{"top_k": true}', "top_k must be an integer"),
        ('{"temperature": NaN}', "temperature must be a number from 0 to 2"),
        ('{"temperature": 1e400}', "temperature must be a number from 0 to 2"),
        ('{"temperature": "1"}', "temperature must be a number"),
        ('{"top_p": 0}', "top_p must be a number from 1e-06 to 1"),
        ('{"min_p": -0.1}', "min_p must be"),
        ('{"repetition_penalty": 1e-40}', "repetition_penalty must be a number from 0.01 to 10"),
        ('{"eos_token_id": [2, -1]}', "eos_token_id must be token ids"),
        ('{"eos_token_id": 4294967296}', "eos_token_id must be token ids"),
        ('{"eos_token_id": {}}', "eos_token_id must be token ids"),
        (f'{{"eos_token_id": {list(range(1000))}}}', "eos_token_id names 10"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
async def test_a_generation_config_that_no_engine_can_follow_fails_its_model_with_a_sentence(
    own_model: Path, workers: WorkerPool, config: str, named: str
) -> None:
    (own_model / "generation_config.json").write_text(config)
    with pytest.raises(TokenizerError, match=named) as raised:
        await Texts(workers).get(ModelSource(directory=str(own_model)))
    assert len(str(raised.value)) < 500


async def test_a_generation_config_may_switch_parameters_off(own_model: Path, workers: WorkerPool) -> None:
    (own_model / "generation_config.json").write_text('{"temperature": 0, "top_k": -1, "min_p": 0, "top_p": 1}')
    _, sampling = await tokens_of(workers, Texts(workers), own_model)
    assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.top_p) == (0.0, 0, 0.0, 1.0)
