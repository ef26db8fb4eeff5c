"""Models from the hub, against a server on this machine that speaks the few endpoints that fetching needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import huggingface_hub.constants
import pytest
from local_servers import QuietHandler, serving
from sidecar.rig import Rig, config, inside
from sidecar.web import ANYWHERE, outbound, quick_tier

from aegaeon_proto.codec.catalog import source_to
from aegaeon_proto.engine.catalog import HubSource
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.domain.errors import SourceError
from aegaeon_sidecar.weights.download import Progress
from aegaeon_sidecar.weights.sources import Sources

REPOSITORY = "org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(QuietHandler, BaseHTTPRequestHandler):
    """One repository with the files of a directory, at revision main.

    `tokens`: whose it gives files to; empty: all. `altered`: whose bytes are others than it promises. `cuts`: bytes
    after which answers with weights break off; `starts`: which files were asked for from which byte on.
    """

    tokens: frozenset[str] = frozenset()
    altered: str = ""
    cuts: ClassVar[list[int]] = []
    starts: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, directory: Path, *arguments: object) -> None:
        self.directory = directory
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        if self.tokens and self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        file = self.directory / path.rpartition("/")[2]
        if path in (f"/api/models/{REPOSITORY}/revision/main", f"/api/models/{REPOSITORY}"):
            siblings = [described(file, large=file.suffix == ".safetensors") for file in self._files()]
            self._send(json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode(), body, {})
        elif path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
            tree = [
                {"type": "file", "path": file.name, "oid": "0", "size": file.stat().st_size} for file in self._files()
            ]
            self._send(json.dumps(tree).encode(), body, {})
        elif path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/") and file.is_file():
            data = file.read_bytes()[:: -1 if file.name == self.altered else 1]
            etag = hashlib.sha1(data).hexdigest()
            self._send(data, body, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound" if "/api/" in path else "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _files(self) -> list[Path]:
        return sorted(self.directory.iterdir())

    def _send(self, data: bytes, body: bool, headers: dict[str, str]) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        for name, value in {"Content-Length": str(len(data) - start), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.starts.append((self.path.rpartition("/")[2], start))
            cut = self.cuts.pop() if self.cuts and self.path.endswith(".safetensors") else len(data)
            self.wfile.write(data[start : start + cut])


def described(file: Path, large: bool) -> dict[str, Any]:
    """As the hub tells of a file that git keeps, or LFS because it is large."""
    data = file.read_bytes()
    known = {"rfilename": file.name, "size": len(data)}
    if large:
        return {**known, "lfs": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 130}}
    return {**known, "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}


def point_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment variable HF_ENDPOINT does when the process starts."""
    constants = huggingface_hub.constants
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template.replace(constants.ENDPOINT, address))
    monkeypatch.setattr(constants, "ENDPOINT", address)


@pytest.fixture
def hub(tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Hub, "cuts", [])
    monkeypatch.setattr(Hub, "starts", [])
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, tiny_models["qwen3"]))) as address:
        point_to(f"http://{address}", monkeypatch)
        yield f"http://{address}"


def source(repository: str, revision: str = "", credentials_file: str = "") -> HubSource:
    return HubSource(repository, revision, credentials_file)


@pytest.fixture(params=["in the disk tier", "in the library's cache"])
def sources(request: pytest.FixtureRequest, folder: Path) -> Sources:
    """Both places of a model."""
    if request.param == "in the disk tier":
        return Sources(None, quick_tier(folder), outbound())
    return Sources(folder / "hub", None, outbound(ambient=True))


def locate(sources: Sources, wanted: HubSource, progress: Progress = lambda done, total: None) -> Path:
    located = sources.locate(wanted, progress, lambda: False)
    if located.stored is not None:
        located.stored.close()
    return located.directory


@pytest.mark.parametrize("tier", [True, False])
async def test_a_model_from_the_hub_is_fetched_and_can_be_loaded(hub: str, scheduler: Rig, tier: bool) -> None:
    disk = {"folder": str(scheduler.folder / "disk"), "budget_bytes": 1 << 30}
    place = {"disk": disk} if tier else {"hub_cache": str(scheduler.folder / "hub")}
    async with inside(config(scheduler.folder, **place, sources=ANYWHERE | {"ambient_credentials": not tier})):
        link = await scheduler.cached([mpb.ModelSpec(name="m", source=source_to(source(REPOSITORY, "main")))])
        await link.done(link.send(pb.Load(model="m", slabs=32)))


def test_fetched_models_are_found_again_without_the_hub(
    hub: str, sources: Sources, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = locate(sources, source(REPOSITORY))
    point_to("http://127.0.0.1:9", monkeypatch)
    assert locate(sources, source(REPOSITORY)) == first
    for path in tiny_models["qwen3"].iterdir():
        assert (first / path.name).read_bytes() == path.read_bytes()


def test_a_fetch_from_the_hub_resumes_at_the_byte_where_it_broke_off_and_reports_progress(
    hub: str, folder: Path
) -> None:
    Hub.cuts = [1000]
    seen: list[tuple[int, int]] = []
    sources = Sources(None, quick_tier(folder), outbound())
    directory = locate(sources, source(REPOSITORY), lambda done, total: seen.append((done, total)))
    assert [start for name, start in Hub.starts if name == "model.safetensors"] == [0, 1000]
    assert seen[-1] == (sum(path.stat().st_size for path in directory.iterdir() if path.name[0] != "."),) * 2


@pytest.mark.parametrize(("name", "kind"), [("model.safetensors", "sha256"), ("config.json", "sha1")])
def test_bytes_other_than_the_hub_has_promised_are_refused(
    hub: str, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.setattr(Hub, "altered", name)
    with pytest.raises(SourceError, match=rf"{name}: its {kind} is [0-9a-f]+, the source announced [0-9a-f]+"):
        locate(Sources(None, quick_tier(folder), outbound()), source(REPOSITORY))


def test_models_of_the_hub_evict_each_other(hub: str, folder: Path) -> None:
    sources = Sources(None, quick_tier(folder), outbound())
    first = locate(sources, source(REPOSITORY))
    nbytes = sum(path.stat().st_size for path in first.iterdir())
    small = Sources(None, quick_tier(folder, nbytes * 3 // 2), outbound())
    second = locate(small, source(REPOSITORY, "main"))
    assert (first.exists(), second.exists()) == (False, True)


@pytest.mark.parametrize(
    ("repository", "words"), [("org/other", "the hub answers 404"), ("not//an id", "not a hub id")]
)
def test_a_model_missing_on_the_hub_is_reported(hub: str, sources: Sources, repository: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        locate(sources, source(repository))


def test_an_unreachable_hub_is_reported(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    point_to("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(SourceError, match="cannot be reached"):
        locate(sources, source(REPOSITORY))


def test_the_token_of_the_sources_file_is_sent_to_the_hub(
    hub: str, sources: Sources, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "tokens", frozenset({"hf_ours"}))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    token = folder / "token"
    token.write_text("hf_ours\n", "utf-8")
    with pytest.raises(SourceError, match="answers 401"):
        locate(sources, source(REPOSITORY))
    assert (locate(sources, source(REPOSITORY, credentials_file=str(token))) / "config.json").is_file()
    with pytest.raises(SourceError, match="cannot be read"):
        locate(sources, source(REPOSITORY, "other", credentials_file=str(folder / "missing")))
