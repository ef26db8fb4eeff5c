"""The small files of a model: tokenizer, templates, configuration; never weights. From wherever the model is.

What is far away is fetched in threads of its own: a source that hangs or drips holds up no model of another.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory

from aegaeon_gateway.errors import TokenizerError
from aegaeon_gateway.workers.bounds import FILE_BYTES, FOLDER_BYTES, OTHER_FILE_BYTES
from aegaeon_proto.credentials import CredentialsError, s3_keys, token_of
from aegaeon_proto.folders import OutsideError, check_within
from aegaeon_proto.outbound.client import Client, Outbound
from aegaeon_proto.outbound.errors import OutboundError
from aegaeon_proto.outbound.slots import Slots, http_slot, hub_slot, s3_slot
from aegaeon_proto.outbound.store import read_whole, s3_client
from aegaeon_proto.outbound.urls import HUB_FILES_HOSTS, check_source
from aegaeon_proto.redaction import sentence
from aegaeon_proto.text_files import TEXT_FILES
from aegaeon_proto.v1.model_pb2 import HttpSource, HubSource, ModelSource, S3Source

_NAMES = ("config.json", *TEXT_FILES)
_HALF = "part-"  # a folder that is being filled
_FETCHED_BYTES = 4 << 30  # of all models; those fetched longest ago make room
_MODEL_S = 300.0
_ABANDONED_S = 2 * _MODEL_S  # a folder that has not changed for so long is of a process that was killed

Get = Callable[[str, int], bytes | None]


class Directories:
    """Where the files of models' text are on this machine. `hub_cache`: of the hub's library, for `ambient` alone."""

    def __init__(self, hub_cache: str | None, fetched: str | None, outbound: Outbound) -> None:
        self._hub_cache = hub_cache
        self._fetched = fetched
        self._outbound = outbound
        self._slots = Slots("tokenizers")

    async def get(self, source: ModelSource) -> Path:
        """Raises TokenizerError."""
        kind = source.WhichOneof("kind")
        if kind not in ("hub", "s3", "http"):
            return await asyncio.to_thread(_local, source)
        done: Future[Path] = Future()
        self._slots.submit(_slot(source), lambda: _run_unless_cancelled(done, lambda: self._bring(source)))
        return await asyncio.wrap_future(done)

    def _bring(self, source: ModelSource) -> Path:
        """Whatever a source raises ends here, as a sentence about this model."""
        kind = source.WhichOneof("kind")
        try:
            if kind == "hub" and self._outbound.ambient:
                return _snapshot(source.hub, self._hub_cache)
            if self._fetched is None:
                raise TokenizerError(f"source.{kind} needs a folder for its tokenizer; set fetched in the config file")
            return fetch(source, Path(self._fetched), self._outbound)
        except TokenizerError:
            raise
        except (CredentialsError, OutboundError) as error:
            raise TokenizerError(f"source.{kind}: {error}") from error
        except Exception as error:  # a tenant's server may make ssl or botocore raise anything
            raise TokenizerError(f"source.{kind}: the tokenizer cannot be fetched: {sentence(error)}") from error


def _slot(source: ModelSource) -> str:
    kind = source.WhichOneof("kind")
    if kind == "hub":
        return hub_slot(source.hub.repository)
    return s3_slot(source.s3.endpoint, source.s3.bucket) if kind == "s3" else http_slot(source.http.url)


def _local(source: ModelSource) -> Path:
    directory = Path(source.directory)
    try:
        check_within(directory, source.root)
    except OutsideError as error:
        raise TokenizerError(str(error)) from error
    except OSError as error:
        raise TokenizerError(f"{directory}: {error.strerror}") from error
    return directory


def fetch(source: ModelSource, folder: Path, outbound: Outbound) -> Path:
    """The directory inside `folder` with those of the files that there are. Raises what a source raises."""
    directory = folder / sha256(source.SerializeToString(deterministic=True)).hexdigest()[:32]
    if directory.is_dir():
        return directory
    client = outbound.client()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        client.watch.within(_MODEL_S, "fetching its small files"),
        TemporaryDirectory(dir=folder, prefix=_HALF) as part,
    ):
        _fill(Path(part), _get(source, client, outbound.ambient))
        _make_room(folder)
        _publish(Path(part), directory)
    return directory


def _publish(part: Path, directory: Path) -> None:
    """Whole or not at all; another one that has brought the same meanwhile was first."""
    try:
        part.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise
    else:
        part.mkdir()  # for TemporaryDirectory to remove


def _fill(part: Path, get: Get) -> None:
    left = FOLDER_BYTES
    for name in _NAMES:
        data = get(name, min(left, FILE_BYTES.get(name, OTHER_FILE_BYTES)))
        if data is not None:
            left -= len(data)
            (part / name).parent.mkdir(exist_ok=True)
            (part / name).write_bytes(data)


def _make_room(folder: Path) -> None:
    """For one model more. What was abandoned half-way goes in any case."""
    sizes = {path: _size(path) for path in folder.iterdir() if path.is_dir()}
    taken, abandoned_ns = sum(sizes.values()), time.time_ns() - int(_ABANDONED_S * 1e9)
    for path in sorted(sizes, key=_changed_at):
        half = path.name.startswith(_HALF)
        if _changed_at(path) < abandoned_ns if half else taken > _FETCHED_BYTES:
            shutil.rmtree(path, ignore_errors=True)
            taken -= sizes[path]


def _size(folder: Path) -> int:
    """0 for what another thread removes in this moment."""
    with suppress(FileNotFoundError):
        return sum(file.stat().st_size for file in folder.iterdir())
    return 0


def _changed_at(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


def _get(source: ModelSource, client: Client, ambient: bool) -> Get:
    if source.HasField("s3"):
        return _s3(source.s3, client, ambient)
    return _http(source.http, client) if source.HasField("http") else _hub(source.hub, client)


def _http(source: HttpSource, client: Client) -> Get:
    folder = check_source(source.url).rstrip("/")
    return _web(lambda name: f"{folder}/{name}", token_of(source.credentials_file), client)


def _hub(source: HubSource, client: Client) -> Get:
    from huggingface_hub import hf_hub_url

    def url_of(name: str) -> str:
        return hf_hub_url(source.repository, name, revision=source.revision or None)

    return _web(url_of, token_of(source.credentials_file), client, HUB_FILES_HOSTS)


def _web(url_of: Callable[[str], str], token: str, client: Client, hosts: tuple[str, ...] = ()) -> Get:
    def get(name: str, most_bytes: int) -> bytes | None:
        with client.open(url_of(name), token=token, hosts=hosts) as response:
            if response.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                return None
            if response.status != HTTPStatus.OK:
                raise TokenizerError(f"{response.url}: the server answers {response.status}")
            return response.read_all(most_bytes)

    return get


def _s3(source: S3Source, client: Client, ambient: bool) -> Get:
    store = s3_client(source.endpoint, s3_keys(source.credentials_file), client, ambient)
    from botocore.exceptions import ClientError

    prefix = source.prefix.strip("/")

    def get(name: str, most_bytes: int) -> bytes | None:
        key = f"{prefix}/{name}" if prefix else name
        try:
            body = store.get_object(Bucket=source.bucket, Key=key)["Body"]
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "NoSuchKey":
                return None
            raise
        return read_whole(body, most_bytes, f"s3://{source.bucket}/{key}")

    return get


def _snapshot(source: HubSource, hub_cache: str | None) -> Path:
    """Fetch with the hub's own library, into the cache of this machine's owner."""
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            source.repository,
            revision=source.revision or None,
            cache_dir=hub_cache,
            token=token_of(source.credentials_file) or None,  # None: the environment's
            allow_patterns=[*_NAMES, "tokenizer*", "vocab*", "*.jinja"],
        )
    )


def _run_unless_cancelled(done: Future[Path], bring: Callable[[], Path]) -> None:
    """Run it for those that wait, unless none does: what an executor does, for a thread of `Slots`."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        path = bring()
    except BaseException as error:  # noqa: BLE001 - a panic of a native library is one; no request may wait for ever
        done.set_exception(error)
    else:
        done.set_result(path)
