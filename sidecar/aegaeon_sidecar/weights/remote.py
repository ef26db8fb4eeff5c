"""Models on a web server: lists the files, and reads one from any offset.

s3.py has S3-compatible stores, hub.py the hub. boundary.py wraps the errors of all of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Protocol

from aegaeon_proto.credentials import token_of
from aegaeon_proto.engine.catalog import HttpSource
from aegaeon_proto.outbound.client import Answer, Client
from aegaeon_proto.outbound.urls import check_source
from aegaeon_proto.pooling import POOLING
from aegaeon_proto.text_files import TEXT_FILES
from aegaeon_sidecar.domain.errors import SourceError
from aegaeon_sidecar.models.adapters import ADAPTER_WEIGHTS
from aegaeon_sidecar.models.documents import MOST_INDEX_BYTES
from aegaeon_sidecar.models.files import INDEX, SINGLE
from aegaeon_sidecar.models.placement import ADAPTER_CONFIG, CONFIG
from aegaeon_sidecar.weights.addresses import address_of

MOST_FILES = 1000
_MOST_RETRY_AFTER_S = 3600.0
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
MOST_SUMS_BYTES = 1 << 20
SUMS = "SHA256SUMS"
# Names that begin with a dot are the disk tier's own.
WANTED = re.compile(
    r"(?!\.)[\w.-]{1,200}\.(json|safetensors|jinja|model|txt)|SHA256SUMS|" + re.escape(POOLING), re.ASCII
)
_NAME = re.compile(r"(?!\.)[\w.-]{1,200}\.safetensors", re.ASCII)


class BrokenOffError(Exception):
    """The connection broke, or the server is busy; what came is good, and the rest can be asked for, after
    `retry_after_s` where the server says so."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PastEndError(Exception):
    """The file has no bytes from there on: it has fewer than were fetched, or just as many."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file: `version` changes when its bytes do ("" when the server does not say); checksums are lower-case hex.

    `nbytes` is -1 when it is not known; `git` is the hash of a git blob, which needs it.
    """

    name: str
    nbytes: int
    version: str
    sha256: str = ""
    md5: str = ""
    git: str = ""

    @property
    def checksum(self) -> str:
        """The best one that is known; "" when none is."""
        return self.sha256 or self.md5 or self.git


class Remote(Protocol):
    """A folder far away. Every method raises SourceError for an answer that no retry mends, else BrokenOffError.

    Before it is guarded (boundary.py) it may raise anything.
    """

    @property
    def address(self) -> str:
        """The address for people; it also names the copy on this machine."""
        ...

    def files(self) -> list[RemoteFile]:
        """The files of a model that are there."""
        ...

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """The bytes of this version of the file from `start` on. Raises PastEndError, too."""
        ...


class HttpRemote:
    """A folder on a web server. It lists nothing: `names` are the files that there must be, and without them those of a
    model, of which its own index says which they are."""

    def __init__(self, source: HttpSource, client: Client, names: Seq[str] = ()) -> None:
        check_source(source.url)
        self.address = address_of(source)
        self._client = client
        self._names = names
        self._token = token_of(source.credentials_file)

    def files(self) -> list[RemoteFile]:
        """See Remote."""
        names = [*self._names] or [CONFIG, *self._weights(), *TEXT_FILES]
        check_count(self.address, len(names))
        files = [file for name in names if (file := self._look(name)) is not None]
        missing = set(names) - {file.name for file in files} - set(TEXT_FILES)
        if missing:
            raise SourceError(f"{self.address}: has no {min(missing)}; check the address")
        sums = parse_sums(self._text(SUMS, MOST_SUMS_BYTES) or "")
        return [RemoteFile(file.name, file.nbytes, file.version, sums.get(file.name, "")) for file in files]

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Remote."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        if start and file.version.startswith('"'):  # a weak validator is of no use here
            headers["If-Range"] = file.version
        with self._answer(file.name, headers) as response:
            if response is None or _version(response) != file.version:
                raise SourceError(f"{self.address}/{file.name}: changed while it was fetched; send the catalog again")
            yield from from_byte(response, start)

    def _weights(self) -> list[str]:
        index = self._text(INDEX, MOST_INDEX_BYTES)
        if index is None:
            return [SINGLE]
        return [INDEX, *sorted({name for name in re.findall(r'"([^"]*)"', index) if _NAME.fullmatch(name)})]

    def _look(self, name: str) -> RemoteFile | None:
        with self._answer(name, {}, method="HEAD") as response:
            return None if response is None else RemoteFile(name, response.nbytes, _version(response))

    def _text(self, name: str, most_bytes: int) -> str | None:
        with self._answer(name, {}) as response:
            return None if response is None else response.read_all(most_bytes).decode("utf-8", "replace")

    def _answer(self, name: str, headers: dict[str, str], method: str = "GET") -> AbstractContextManager[Answer | None]:
        return answer(self._client, f"{self.address}/{name}", self._token, headers, method=method)


def parse_sums(text: str) -> dict[str, str]:
    """Parse the output of sha256sum: `<64 hex digits>  <name>`. Skips lines of another form."""
    lines = re.findall(r"^([0-9a-fA-F]{64})[ \t]+\*?(?:\./)?([\w.-]+)\r?$", text, re.MULTILINE)
    return {name: digest.lower() for digest, name in lines}


def check_count(address: str, files: int) -> None:
    """Raises SourceError for a source that lists files without end."""
    if files > MOST_FILES:
        raise SourceError(f"{address}: lists {files} files of a model; the limit is {MOST_FILES}; check the address")


@contextmanager
def answer(
    client: Client, url: str, token: str, headers: dict[str, str], *, method: str = "GET", hosts: tuple[str, ...] = ()
) -> Iterator[Answer | None]:
    """A web server's answer; None when it has no such file. Raises SourceError, BrokenOffError and PastEndError."""
    with client.open(url, method=method, headers=headers, token=token, hosts=hosts) as response:
        yield response if _is_there(response, "Range" in headers) else None


def _is_there(response: Answer, ranged: bool) -> bool:
    status = response.status
    if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        return True
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return False
    if is_temporary(status):
        raise BrokenOffError(
            f"{response.url}: the server answers {status}", retry_after_s(response.headers.get("Retry-After"))
        )
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and ranged:
        raise PastEndError(f"{response.url}: has no bytes at this offset")
    raise SourceError(f"{response.url}: the server answers {status}; check address and access")


def is_temporary(status: int) -> bool:
    """True when a request with such an answer may be repeated."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS


def retry_after_s(header: str | None) -> float:
    """The pause that a server requests (RFC 9110, 10.2.3: seconds or a date); 0 without one."""
    text = (header or "").strip()
    if text.isdecimal():
        return min(float(text), _MOST_RETRY_AFTER_S)
    try:
        seconds = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), _MOST_RETRY_AFTER_S)


def from_byte(response: Answer, start: int) -> Iterator[bytes]:
    """The bytes from `start` on, even when the server sends the file from its beginning."""
    ahead = start if response.status != HTTPStatus.PARTIAL_CONTENT else 0
    for chunk in response.chunks():
        if ahead < len(chunk):
            yield chunk[ahead:]
        ahead = max(ahead - len(chunk), 0)


def _version(response: Answer) -> str:
    return response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
