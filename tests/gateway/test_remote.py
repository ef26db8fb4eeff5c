"""The small files of models from afar: bounded, by the pool's rules, and no source holds up another."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sidecar.web import ANYWHERE, Server, serving

from aegaeon_gateway.config import load_config
from aegaeon_gateway.errors import ConfigError, TokenizerError
from aegaeon_gateway.models import remote as remote_module
from aegaeon_gateway.models.remote import Directories
from aegaeon_proto.outbound.client import Outbound
from aegaeon_proto.outbound.limits import Limits
from aegaeon_proto.outbound.policy import EVERYWHERE, Policy
from aegaeon_proto.v1.model_pb2 import HttpSource, HubSource, ModelSource, S3Source

SECRET = "S3cr3tWord"


@pytest.fixture
def web() -> Iterator[Server]:
    with serving() as server:
        yield server


def directories(folder: Path, *allowed: str, **limits: float) -> Directories:
    outbound = Outbound(Policy(allowed or EVERYWHERE), Limits(**limits))
    return Directories(None, str(folder / "fetched"), outbound)


def http(url: str, credentials_file: str = "") -> ModelSource:
    return ModelSource(http=HttpSource(url=url, credentials_file=credentials_file))


async def test_the_small_files_are_fetched_once_and_the_weights_never(web: Server, tmp_path: Path) -> None:
    places = directories(tmp_path)
    directory = await places.get(http(web.address))
    assert {path.name for path in directory.iterdir()} == {"config.json", "tokenizer.json"}
    asked = len(web.asked)
    assert await places.get(http(web.address)) == directory
    assert (len(web.asked), web.sent("model.safetensors")) == (asked, 0)


async def test_what_says_how_a_model_pools_is_fetched_in_its_own_folder(web: Server, tmp_path: Path) -> None:
    web.files["1_Pooling/config.json"] = b'{"pooling_mode_lasttoken": true}'
    directory = await directories(tmp_path).get(http(web.address))
    assert (directory / "1_Pooling" / "config.json").read_bytes() == web.files["1_Pooling/config.json"]


async def test_a_directory_that_is_a_link_to_itself_is_refused_with_a_sentence(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(TokenizerError, match=r"loop: Too many levels of symbolic links"):
        await directories(tmp_path).get(ModelSource(directory=str(loop), root=str(tmp_path)))


async def test_a_source_that_is_not_allowed_is_refused(web: Server, tmp_path: Path) -> None:
    outbound = Outbound(Policy(()))
    with pytest.raises(TokenizerError, match="is at a loopback address"):
        await Directories(None, str(tmp_path), outbound).get(http(web.address))
    web.redirects = {"config.json": "http://169.254.169.254/latest/meta-data"}
    with pytest.raises(TokenizerError, match=r"allowedSources"):
        await directories(tmp_path, "127.0.0.1").get(http(web.address))


async def test_endless_files_are_refused(web: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "OTHER_FILE_BYTES", 1 << 20)
    web.files["tokenizer.json"] = b" " * 65536
    web.endless = {"tokenizer.json"}
    with pytest.raises(TokenizerError, match="has more than 1048576 bytes"):
        await directories(tmp_path).get(http(web.address))


async def test_the_total_size_of_a_models_files_is_bounded(
    web: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "FOLDER_BYTES", 100_000)
    web.files |= {"tokenizer.json": b" " * 60_000, "vocab.json": b" " * 60_000}
    with pytest.raises(TokenizerError, match="the limit for it"):
        await directories(tmp_path).get(http(web.address))


async def test_the_least_recently_used_models_are_evicted(
    web: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "_FETCHED_BYTES", 150_000)
    web.files["tokenizer.json"] = b" " * 60_000
    places = directories(tmp_path)
    first, second, third = [await places.get(http(web.address.replace("tiny", name))) for name in ("a", "b", "c")]
    assert (first.exists(), second.exists(), third.exists()) == (False, True, True)


async def test_what_a_killed_gateway_left_half_fetched_is_removed(web: Server, tmp_path: Path) -> None:
    left, filled = tmp_path / "fetched" / "part-left", tmp_path / "fetched" / "part-filled"
    for folder in (left, filled):
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_bytes(b" " * 60_000)
    long_ago = time.time() - 3600
    os.utime(left, (long_ago, long_ago))
    await directories(tmp_path).get(http(web.address))
    assert not left.exists()
    assert filled.exists(), "another gateway of this machine may fill it"


def test_two_fetches_of_the_same_files_that_end_at_once_are_one(
    web: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is loaded ahead, and a request for it comes meanwhile."""
    source, folder, outbound = http(web.address), tmp_path / "fetched", Outbound(Policy(EVERYWHERE))
    both_are_here = threading.Barrier(2, timeout=10)
    monkeypatch.setattr(remote_module, "_make_room", lambda folder: both_are_here.wait())
    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            both = [threads.submit(remote_module.fetch, source, folder, outbound) for _ in range(2)]
            [directory] = {one.result() for one in both}
            assert list(folder.iterdir()) == [directory]
            shutil.rmtree(directory)


async def test_slow_sources_do_not_block_others(web: Server, tmp_path: Path) -> None:
    web.dripping = "slow"
    web.files["config.json"] = b"{}" + b" " * 1000  # 100 s
    places = directories(tmp_path)
    with serving() as good:
        urls = [f"{web.address}/{number}/slow" for number in range(40)]
        *slow, other = [asyncio.create_task(places.get(http(url))) for url in (*urls, good.address)]
        first, _ = await asyncio.wait((*slow, other), return_when=asyncio.FIRST_COMPLETED)
        assert first == {other}
        assert other.result().is_dir()
        web.released.set()
        await asyncio.gather(*slow)


async def test_a_slow_file_ends_with_a_sentence(web: Server, tmp_path: Path) -> None:
    web.dripping = "tiny"
    web.files["config.json"] = b"{}" + b" " * 1000
    with pytest.raises(TokenizerError, match=r"the answer took longer than 0\.5 s"):
        await directories(tmp_path, small_s=0.5).get(http(web.address))


@pytest.mark.parametrize(
    "error",
    [
        kind(f"https://u:{SECRET}@h/?token={SECRET}\r\n")
        for kind in (RuntimeError, ValueError, UnicodeError, RecursionError, MemoryError, OSError, KeyError)
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["http", "s3", "hub"])
async def test_every_error_of_a_source_becomes_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    kind: str,
) -> None:
    def throw(*_: object) -> None:
        raise error

    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(remote_module, f"_{kind}", throw)
    sources = {
        "http": ModelSource(http=HttpSource(url="http://h")),
        "s3": ModelSource(s3=S3Source(bucket="b")),
        "hub": ModelSource(hub=HubSource(repository="a/b")),
    }
    with pytest.raises(TokenizerError) as raised:
        await directories(tmp_path).get(sources[kind])
    said = str(raised.value)
    assert said.startswith(f"source.{kind}: the tokenizer cannot be fetched: {type(error).__name__}")
    assert said.isprintable()
    assert SECRET not in said + caplog.text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (http("http://[bad/m1"), "is not an http:// or https:// address"),
        (http("http://h/ü"), "is not an http:// or https:// address"),
        (http("http://127.0.0.1:9", "TOKEN"), "must hold one token"),
        (ModelSource(hub=HubSource(repository="no//id")), "HFValidationError"),
        (ModelSource(s3=S3Source(bucket="b", endpoint="http://[bad")), "is not an http:// or https:// address"),
    ],
)
async def test_bad_input_of_a_tenant_is_refused_with_a_sentence(
    tmp_path: Path, source: ModelSource, words: str
) -> None:
    if source.http.credentials_file:
        source.http.credentials_file = str(tmp_path / "token")
        (tmp_path / "token").write_text(f"one\n{SECRET}\n")
    with pytest.raises(TokenizerError, match=words) as raised:
        await directories(tmp_path).get(source)
    assert SECRET not in str(raised.value)


def test_an_invalid_list_of_sources_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gateway.json"
    needed = '"name": "g", "listen": "a:1", "scheduler": "b", "sink": "c"'
    for allowed in ('["a b"]', "[1]"):
        file.write_text(f'{{{needed}, "allowed_sources": {allowed}}}')
        with pytest.raises(ConfigError, match="allowed_sources"):
            load_config(file)
    file.write_text(f'{{{needed}, "allowed_sources": {list(ANYWHERE["allowed"])}}}'.replace("'", '"'))
    assert load_config(file).allowed_sources == EVERYWHERE
