"""Models from the hub, against a server on this machine that speaks the few endpoints that fetching needs."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest
from sidecar.rig import Rig, config, inside

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.errors import SourceError
from aegaeon_sidecar.weights.disk import DiskTier
from aegaeon_sidecar.weights.sources import Sources

REPOSITORY = "org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """One repository with the files of a directory, at revision main. `tokens`: whose it gives files to; empty: all."""

    tokens: frozenset[str] = frozenset()

    def __init__(self, directory: Path, *arguments: object) -> None:
        self.directory = directory
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        if self.tokens and self.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        file = self.directory / path.rpartition("/")[2]
        if path in (f"/api/models/{REPOSITORY}/revision/main", f"/api/models/{REPOSITORY}"):
            files = [{"rfilename": file.name} for file in self._files()]
            self._send(json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": files}).encode(), body, {})
        elif path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
            tree = [
                {"type": "file", "path": file.name, "oid": "0", "size": file.stat().st_size} for file in self._files()
            ]
            self._send(json.dumps(tree).encode(), body, {})
        elif path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/") and file.is_file():
            data = file.read_bytes()
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
        self.send_response(200)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


def point_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment variable HF_ENDPOINT does when the process starts."""
    constants = huggingface_hub.constants
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template.replace(constants.ENDPOINT, address))
    monkeypatch.setattr(constants, "ENDPOINT", address)


@pytest.fixture
def hub(tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, tiny_models["qwen3"]))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    point_to(address, monkeypatch)
    yield address
    server.shutdown()
    thread.join()
    server.server_close()


def source(repository: str, revision: str = "", credentials_file: str = "") -> mpb.ModelSource:
    hub = mpb.HubSource(repository=repository, revision=revision, credentials_file=credentials_file)
    return mpb.ModelSource(hub=hub)


def locate(wanted: mpb.ModelSource, folder: Path) -> Path:
    sources = Sources(folder, DiskTier(folder / "disk", 1 << 30, time.sleep))
    return sources.locate(wanted, lambda done, total: None, lambda: False).directory


async def test_a_model_from_the_hub_is_fetched_and_can_be_loaded(hub: str, scheduler: Rig, folder: Path) -> None:
    async with inside(config(folder, hub_cache=str(folder / "hub"))):
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[mpb.ModelSpec(name="m", source=source(REPOSITORY, "main"))]))
        await link.until(lambda: "m" in link.models)
        await link.cached("m")
        await link.done(link.send(pb.Load(model="m", slabs=32)))


def test_what_was_fetched_is_found_again_without_the_hub(
    hub: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = locate(source(REPOSITORY), folder)
    point_to("http://127.0.0.1:9", monkeypatch)
    assert locate(source(REPOSITORY), folder) == first
    assert {"config.json", "model.safetensors"} <= {path.name for path in first.iterdir()}


@pytest.mark.parametrize(
    ("repository", "words"), [("org/other", "the hub answers 404"), ("not//an id", "is no hub id")]
)
def test_what_the_hub_does_not_have_is_said(hub: str, folder: Path, repository: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        locate(source(repository), folder)


def test_a_hub_that_cannot_be_reached_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point_to("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(SourceError, match="cannot be reached"):
        locate(source(REPOSITORY), folder)


def test_the_token_of_the_sources_file_is_sent_to_the_hub(
    hub: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "tokens", frozenset({"hf_ours"}))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    token = folder / "token"
    token.write_text("hf_ours\n", "utf-8")
    with pytest.raises(SourceError, match="answers 401"):
        locate(source(REPOSITORY), folder)
    assert (locate(source(REPOSITORY, credentials_file=str(token)), folder) / "config.json").is_file()
    with pytest.raises(SourceError, match="cannot be read"):
        locate(source(REPOSITORY, credentials_file=str(folder / "missing")), folder)
