"""The objects behind files and batches: a folder, or a prefix of a bucket. What exists is whole after any kill -9."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, S3Store

from aegaeon_gateway.batches.settings import BatchSettings, Bucket
from aegaeon_gateway.errors import ConfigError, overloaded
from aegaeon_gateway.uncancelled import to_its_end
from aegaeon_proto.credentials import CredentialsError, s3_keys
from aegaeon_proto.outbound.egress import DIRECT, Egress
from aegaeon_proto.outbound.errors import RefusedError
from aegaeon_proto.redaction import sentence

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config  # there are none at run time

log = logging.getLogger(__name__)

_PART_BYTES = 5 << 20  # the least that S3 takes as a part of an upload
_STAGED = re.compile(r".+#\d+")  # a file that object_store writes to until its object is whole
_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
# As the client writes errors of the operating system, and as a bucket's server answers.
_FULL_SIGNS = (*(f"(os error {number})" for number in _FULL_ERRORS), "507 Insufficient Storage")
_FULL_SENTENCE = "The store of files and batches is full: nothing can be uploaded or begun; delete files, or try later."
_AWAY_SENTENCE = "Files and batches cannot be reached at present; try again."
_AWS, _UNUSED, _EVERYTHING = "https://s3.amazonaws.com", "http://localhost", "*,0.0.0.0/0,::/0"
_ONE_EACH: ClientConfig = {"pool_max_idle_per_host": "0"}  # proxies that relay one HTTP request per connection exist
_CLIENT: ClientConfig = {"connect_timeout": "10s", "timeout": "60s"}


class Entry(NamedTuple):
    """An object of a listing."""

    key: str
    nbytes: int


class Store:
    """Keys are texts with slashes. Every method raises UnavailableError when the store cannot be reached.

    A `put` or `create` that is cancelled is over, done or not, when its caller goes on: cancelling takes back nothing
    of what the client has begun, which would land behind what the caller does next.
    """

    def __init__(self, objects: LocalStore | S3Store) -> None:
        self._objects = objects
        self._staged: dict[Path, tuple[int, int]] = {}

    async def get(self, key: str) -> bytes | None:
        """All of an object; None without one."""
        with _errors():
            try:
                return bytes(await (await self._objects.get_async(key)).bytes_async())
            except FileNotFoundError:
                return None

    async def part(self, key: str, start: int, nbytes: int) -> bytes | None:
        """A part of an object, fewer bytes at its end; None when it is not there any more."""
        with _errors():
            try:
                return bytes(await self._objects.get_range_async(key, start=start, length=nbytes))
            except FileNotFoundError:
                return None

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        """An object in pieces; nothing of one that is not there."""
        with _errors(), suppress(FileNotFoundError):
            response = await self._objects.get_async(key)
            async for piece in response.stream():
                yield bytes(piece)

    async def put(self, key: str, data: bytes) -> None:
        """Write an object, in place of any before."""
        with _errors():
            await to_its_end(self._objects.put_async(key, data))

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object that is not there; False when it is. Of several writers one gets True."""
        with _errors():
            try:
                await to_its_end(self._objects.put_async(key, data, mode="create", use_multipart=False))
            except AlreadyExistsError:
                return False
            return True

    async def upload(self, key: str, pieces: AsyncIterator[bytes]) -> int:
        """Write an object in pieces; returns its bytes. It is there at the end or, when `pieces` fails, not at all."""
        nbytes = 0
        with _errors():
            writer = obstore.open_writer_async(self._objects, key, buffer_size=_PART_BYTES)
            async for piece in pieces:
                await writer.write(piece)
                nbytes += len(piece)
            await writer.close()
        return nbytes

    async def delete(self, *keys: str) -> None:
        """Remove objects, of which some may not be there."""
        with _errors():
            for key in keys:
                with suppress(FileNotFoundError):
                    await self._objects.delete_async(key)

    async def entries(self, prefix: str) -> list[Entry]:
        """All objects below a prefix, in the order of their keys."""
        with _errors():
            pages = [page async for page in self._objects.list_async(prefix)]
        return sorted(Entry(stored["path"], stored["size"]) for page in pages for stored in page)

    async def sweep(self) -> None:
        """Remove what uploads of killed gateways have left half-written in a folder; no listing has it. A bucket ends
        those by a rule of its own. Of an upload that goes on, something has changed since the sweep before."""
        if isinstance(self._objects, LocalStore) and (folder := self._objects.prefix) is not None:
            with _errors():
                self._staged = await asyncio.to_thread(_remove_staged, folder, self._staged)

    async def folders(self, prefix: str) -> list[str]:
        """The names right below a prefix that have objects below them, in order."""
        with _errors():
            listing = await self._objects.list_with_delimiter_async(prefix)
        return sorted(path.rpartition("/")[2] for path in listing["common_prefixes"])


def _remove_staged(folder: Path, before: Mapping[Path, tuple[int, int]]) -> dict[Path, tuple[int, int]]:
    """Remove the files that are unchanged since `before`; returns the states of the rest. No clock is read, as it
    could be set."""
    left = {}
    for path in folder.rglob("*#*"):
        with suppress(FileNotFoundError):  # it is whole since
            if _STAGED.fullmatch(path.name):
                status = path.stat()
                state = status.st_size, status.st_mtime_ns
                if before.get(path) == state:
                    path.unlink()
                else:
                    left[path] = state
    return left


def open_store(settings: BatchSettings, egress: Egress = DIRECT) -> Store:
    """`egress`: the way to a bucket. Raises ConfigError."""
    if settings.s3 is not None:
        return Store(_bucket(settings.s3, egress))
    assert settings.folder is not None, "settings have one of both"
    try:
        Path(settings.folder).mkdir(parents=True, exist_ok=True)
        return Store(LocalStore(settings.folder))
    except (OSError, BaseError) as error:
        raise ConfigError(f"batches.folder: {settings.folder}: {sentence(error)}") from error


def _bucket(bucket: Bucket, egress: Egress) -> S3Store:
    try:
        keys = s3_keys(bucket.credentials_file)
        way = _way(bucket.endpoint or _AWS, egress)
    except (CredentialsError, RefusedError) as error:
        raise ConfigError(f"batches.s3: {error}") from error
    config: S3Config = {"region": bucket.region}
    if bucket.endpoint:
        config["endpoint"] = bucket.endpoint
    if keys:
        config["access_key_id"], config["secret_access_key"] = keys["aws_access_key_id"], keys["aws_secret_access_key"]
    if "aws_session_token" in keys:
        config["session_token"] = keys["aws_session_token"]
    client: ClientConfig = {**_CLIENT, **way, "allow_http": bucket.endpoint.startswith("http://")}
    try:
        return S3Store(bucket.bucket, prefix=bucket.prefix.strip("/") or None, config=config, client_options=client)
    except BaseError as error:
        raise ConfigError(f"batches.s3: {sentence(error)}") from error


def _way(endpoint: str, egress: Egress) -> ClientConfig:
    """The client asks the environment for a proxy unless it is given one: for the direct way, one that is excluded."""
    proxy = egress.proxy_of(endpoint)
    way: ClientConfig = {"proxy_url": proxy.url} if proxy else {"proxy_url": _UNUSED, "proxy_excludes": _EVERYTHING}
    if proxy and endpoint.startswith("http://"):
        way |= _ONE_EACH
    authorities = egress.authorities()
    return way if authorities is None else {**way, "root_certificate": authorities}


@contextmanager
def _errors() -> Iterator[None]:
    """Translate the errors of the store's client. An error of `pieces` is the caller's own, and passes."""
    try:
        yield
    except (BaseError, OSError) as error:
        if isinstance(error, ConnectionError):
            raise
        log.warning("the store of files and batches: %s", sentence(error))
        raise overloaded(_FULL_SENTENCE if _is_full(error) else _AWAY_SENTENCE) from error


def _is_full(error: BaseError | OSError) -> bool:
    return getattr(error, "errno", None) in _FULL_ERRORS or any(sign in str(error) for sign in _FULL_SIGNS)
