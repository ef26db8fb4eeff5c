"""Whatever a source raises, wherever: its model fails with a sentence, others are served, secrets stay hidden."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from huggingface_hub import errors as hub_errors
from sidecar.rig import Rig, config, inside, spec
from sidecar.web import outbound, quick_tier, web_settings

from aegaeon_proto.credentials import CredentialsError
from aegaeon_proto.engine.catalog import HttpSource, HubSource, S3Source
from aegaeon_proto.outbound.errors import GivenUpError, RefusedError, UnreachableError
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.domain.errors import FillCancelledError, SourceError
from aegaeon_sidecar.weights import download
from aegaeon_sidecar.weights import hub as hub_module
from aegaeon_sidecar.weights import sources as sources_module
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.remote import RemoteFile
from aegaeon_sidecar.weights.sources import Sources

SECRET = "S3cr3tWord"
SAID = f"failed for https://user:{SECRET}@host/p?X-Amz-Signature={SECRET} with Bearer {SECRET}\r\n\x1b[31m"


def response() -> httpx.Response:
    return httpx.Response(500, request=httpx.Request("GET", f"https://h/?q={SECRET}"))


def of_urllib() -> list[BaseException]:
    return [
        urllib.error.URLError(SAID),
        urllib.error.HTTPError(f"http://u:{SECRET}@h", 500, SAID, http.client.HTTPMessage(), None),
        urllib.error.ContentTooShortError(SAID, (b"", None)),  # type: ignore[arg-type]
    ]


def every(module: Any, base: type[BaseException]) -> list[type[BaseException]]:
    found = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, base)]
    return sorted(set(found), key=lambda one: one.__name__)


def made(kind: type[BaseException]) -> BaseException:
    """One of its kind, with a secret in what it says, however it wants to be made."""
    tries: list[Callable[[], BaseException]] = [
        lambda: kind(SAID),
        lambda: kind(SAID, response=response()),
        lambda: kind(SAID, request=httpx.Request("GET", "http://h")),
        lambda: kind({"Error": {"Code": SAID, "Message": SAID}}, SAID),
        lambda: kind(error=SAID, endpoint_url=SAID, actual_bytes=1, expected_bytes=2),
        lambda: kind(**dict.fromkeys(_wanted(kind), SAID)),
    ]
    for make in tries:
        try:
            return make()
        except Exception:  # noqa: BLE001 - the next way
            continue
    bare = kind.__new__(kind)
    bare.args = (SAID,)
    return bare


def _wanted(kind: Any) -> list[str]:
    import string

    return [name for _, name, _, _ in string.Formatter().parse(getattr(kind, "fmt", "")) if name]


def _errors() -> Iterator[BaseException]:
    import botocore.exceptions

    yield from of_urllib()
    yield from map(made, every(http.client, Exception))
    yield from map(made, every(ssl, Exception))
    yield from map(made, every(socket, Exception))
    yield from map(made, every(botocore.exceptions, Exception))
    yield from map(made, every(hub_errors, Exception))
    yield from map(made, every(httpx, Exception))
    yield UnicodeDecodeError("utf-8", SAID.encode(), 0, 1, SAID)
    yield UnicodeEncodeError("ascii", SAID, 0, 1, SAID)
    for kind in (
        RuntimeError,
        ValueError,
        UnicodeError,
        RecursionError,
        MemoryError,
        OSError,
        PermissionError,
        KeyError,
    ):
        yield kind(SAID)
    for own in (RefusedError, UnreachableError, CredentialsError):
        yield own("a sentence of our own")
    yield AssertionError(SAID)
    yield StopIteration(SAID)


_NUMBERS = count()


class Throwing:
    """A source that raises in one of its methods."""

    def __init__(self, error: BaseException, where: str) -> None:
        self.address = f"http://h/{next(_NUMBERS)}"
        self._error = error
        self._where = where
        self._throw("make")

    def _throw(self, where: str) -> None:
        if where == self._where:
            raise self._error

    def files(self) -> list[RemoteFile]:
        self._throw("files")
        return [RemoteFile("config.json", 2, "")]

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        self._throw("read")
        yield b"{"
        self._throw("between")
        yield b"}"


@pytest.mark.parametrize("where", ["make", "files", "read", "between"])
def test_every_exception_of_a_source_becomes_a_sentence(folder: Path, where: str) -> None:
    pytest.importorskip("botocore", reason="needs boto3")
    seen, client = set(), outbound().client()
    for error in _errors():
        if where == "between" and isinstance(error, UnreachableError):
            continue  # a connection that breaks is made anew
        with pytest.raises(SourceError) as raised:
            quick_tier(folder).obtain(
                Guarded("source", client, "", partial(Throwing, error, where)),
                lambda done, total: None,
                lambda: False,
            )
        said = str(raised.value)
        assert SECRET not in said, type(error)
        assert said.isprintable(), type(error)
        assert 10 < len(said) < 700
        seen.add(type(error))
    assert len(seen) > 150


def test_a_cancelled_source_is_not_a_failure(folder: Path) -> None:
    with pytest.raises(FillCancelledError):
        Guarded("source", outbound().client(), "", lambda: Throwing(GivenUpError("x"), "files")).files()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_exceptions_that_end_the_process_propagate(error: BaseException) -> None:
    with pytest.raises(type(error)):
        Guarded("source", outbound().client(), "", lambda: Throwing(error, "make"))


def test_a_defect_between_two_reads_is_not_a_failure_of_the_source(folder: Path) -> None:
    def broken(done: int, total: int) -> None:
        raise LookupError("ours")

    remote = Guarded("source", outbound().client(), "", lambda: Throwing(ValueError(), "never"))
    with pytest.raises(LookupError, match="ours"):
        quick_tier(folder).obtain(remote, broken, lambda: False)


KINDS = ("hub", "s3", "http")


def source(kind: str, name: str) -> mpb.ModelSource:
    if kind == "hub":
        return mpb.ModelSource(hub=mpb.HubSource(repository=name))
    if kind == "s3":
        return mpb.ModelSource(s3=mpb.S3Source(bucket=name))
    return mpb.ModelSource(http=mpb.HttpSource(url=f"http://{name}"))


async def test_an_engine_outlives_every_exception_of_sources_and_serves_the_others(
    scheduler: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("botocore", reason="needs boto3")
    errors = list(_errors())
    places = ("make", "files", "read")
    caplog.set_level(logging.DEBUG, "aegaeon_sidecar")
    monkeypatch.setattr(download, "_PAUSES_S", (0.01,) * len(download._PAUSES_S))  # as many tries, without the waits

    def thrower(name: str) -> Throwing:
        number, place = name.rpartition("/")[2].split(".")
        return Throwing(errors[int(number)], place)

    monkeypatch.setattr(hub_module, "HubRemote", lambda hub, *_: thrower(hub.repository))
    monkeypatch.setattr(sources_module, "S3Remote", lambda s3, *_: thrower(s3.bucket))
    monkeypatch.setattr(sources_module, "HttpRemote", lambda http, *_: thrower(http.url))
    found = {  # each of one kind: one boundary is around all of them, of which every exception is tried above
        f"{KINDS[number % 3]}-{number}": (KINDS[number % 3], f"{number}.{places[number // 3 % 3]}")
        for number in range(len(errors))
    }
    bad = {name: source(*given) for name, given in found.items()}
    catalog = [mpb.ModelSpec(name=name, source=given) for name, given in bad.items()]
    async with inside(config(scheduler.folder, **web_settings(scheduler.folder))):
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[*catalog, spec("good", scheduler.models["qwen2"])]))
        await link.cached("good")
        await link.until(
            lambda: all(name in link.models and link.models[name].phase == mpb.MODEL_PHASE_FAILED for name in bad)
        )
        await link.done(link.send(pb.Load(model="good", slabs=32)))
        reasons = "\n".join(link.models[name].reason for name in bad)
    assert SECRET not in reasons
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (HttpSource(url="http://[bad/m1"), "is not an http:// or https:// address of a folder"),
        (HttpSource(url="http://bücher.example/ü"), "is not an http:// or https:// address of a folder"),
        (HttpSource(url="http://h/\r\nX: y"), "is not an http:// or https:// address of a folder"),
        (HttpSource(url=f"http://u:{SECRET}@h/m"), "without user, query and fragment"),
        (HttpSource("http://127.0.0.1:9/m", "TOKEN"), "must hold one token"),
        (S3Source(bucket="b", endpoint="http://[bad"), "is not an http:// or https:// address"),
        (S3Source(bucket="b/../ü", endpoint="http://127.0.0.1:9"), "bucket"),
        (S3Source(bucket="b", endpoint="http://127.0.0.1:9", credentials_file="TOKEN"), "AWS credentials file"),
        (HubSource(repository="a/b\r\n", revision="\ud7ff/.."), "not a hub id"),
        (HubSource(repository="a/b", credentials_file="TOKEN"), "must hold one token"),
    ],
)
def test_bad_input_of_a_tenant_is_refused_with_a_sentence(folder: Path, given: Any, words: str) -> None:
    token = folder / "token"
    token.write_text(f"one\n{SECRET}\n")
    wanted = replace(given, credentials_file=str(token)) if given.credentials_file else given
    with pytest.raises(SourceError, match=words) as raised:
        Sources(None, quick_tier(folder), outbound()).locate(wanted, lambda done, total: None, lambda: False)
    assert SECRET not in str(raised.value)
    assert str(raised.value).isprintable()
