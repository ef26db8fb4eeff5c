"""Models on a web server or in an S3-compatible store: which files there are, and one's bytes from any place on.

Those of the hub are in hub.py.
"""

from __future__ import annotations

import base64
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Protocol

from aegaeon_proto.credentials import s3_keys, token_of
from aegaeon_proto.v1 import model_pb2 as pb
from aegaeon_sidecar.errors import SourceError

CHUNK_BYTES = 1 << 20
SUMS = "SHA256SUMS"
INDEX = "model.safetensors.index.json"
_OPTIONAL = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
_WANTED = re.compile(r"[\w.-]+\.(json|safetensors|jinja|model|txt)|SHA256SUMS")
_NAME = re.compile(r"[\w.-]+\.safetensors")
TIMEOUT_S = 30.0
_SSE_KMS = "aws:kms"


class BrokenOffError(Exception):
    """The connection broke; what came is good, and the rest can be asked for."""


class PastEndError(Exception):
    """The file has no bytes from there on: it has fewer than were fetched, or just as many."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file: `version` changes when its bytes do ("" when the server does not say); checksums are lower-case hex.

    `nbytes` is -1 when it is not told; `git` is the hash of a git blob, which needs it.
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
    """A folder far away. Every method raises SourceError for an answer that no retry mends, else BrokenOffError."""

    @property
    def address(self) -> str:
        """What people call it; it names the copy on this machine."""
        ...

    def files(self) -> list[RemoteFile]:
        """The files of a model that are there."""
        ...

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """The bytes of this version of the file from `start` on. Raises PastEndError, too."""
        ...


class HttpRemote:
    """A folder on a web server. It lists nothing, so the model's own index says which files there must be."""

    def __init__(self, source: pb.HttpSource) -> None:
        if not source.url.startswith(("http://", "https://")):
            raise SourceError(f"source.http.url {source.url!r} is no http:// or https:// address")
        self.address = source.url.rstrip("/")
        self._token = token_of(source.credentials_file)

    def files(self) -> list[RemoteFile]:
        """See Remote."""
        names = ["config.json", *self._weights(), *_OPTIONAL]
        found = [file for name in names if (file := self._look(name)) is not None]
        missing = set(names) - {file.name for file in found} - set(_OPTIONAL)
        if missing:
            raise SourceError(f"{self.address}: has no {min(missing)}; check the address")
        sums = self._sums()
        return [RemoteFile(file.name, file.nbytes, file.version, sums.get(file.name, "")) for file in found]

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Remote."""
        headers = {"Range": f"bytes={start}-"} if start else {}
        if start and file.version.startswith('"'):  # a weak validator is of no use here
            headers["If-Range"] = file.version
        with self._answer(file.name, headers) as given:
            if given is None or _version(given) != file.version:
                raise SourceError(f"{self.address}/{file.name}: changed while it was fetched; send the catalog again")
            if start and given.status != HTTPStatus.PARTIAL_CONTENT:
                skip(given, start)
            while chunk := given.read(CHUNK_BYTES):
                yield chunk

    def _weights(self) -> list[str]:
        index = self._text(INDEX)
        if index is None:
            return ["model.safetensors"]
        return [INDEX, *sorted({name for name in re.findall(r'"([^"]*)"', index) if _NAME.fullmatch(name)})]

    def _sums(self) -> dict[str, str]:
        return parse_sums(self._text(SUMS) or "")

    def _look(self, name: str) -> RemoteFile | None:
        with self._answer(name, {}, method="HEAD") as given:
            if given is None:
                return None
            return RemoteFile(name, int(given.headers.get("Content-Length", -1)), _version(given))

    def _text(self, name: str) -> str | None:
        with self._answer(name, {}) as given:
            return None if given is None else given.read().decode("utf-8", "replace")

    def _answer(self, name: str, headers: dict[str, str], method: str = "GET") -> AbstractContextManager[Any]:
        return answer(f"{self.address}/{name}", self._token, headers, method)


class S3Remote:
    """A prefix of a bucket. Without a file of credentials they come from where every AWS client takes them."""

    def __init__(self, source: pb.S3Source) -> None:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise SourceError("source.s3 needs the package boto3; install aegaeon[s3]") from error
        self._bucket = source.bucket
        self._prefix = source.prefix.strip("/")
        self.address = f"s3://{source.bucket}/{self._prefix}" + (f" at {source.endpoint}" if source.endpoint else "")
        self._client: Any = boto3.Session().client(  # of its own: the library's is not for several threads
            "s3",
            endpoint_url=source.endpoint or None,
            **s3_keys(source.credentials_file),
            config=Config(read_timeout=TIMEOUT_S, connect_timeout=TIMEOUT_S, retries={"total_max_attempts": 1}),
        )

    def files(self) -> list[RemoteFile]:
        """See Remote."""
        with self._errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._key(""))
            listed = [entry["Key"].removeprefix(self._key("")) for page in pages for entry in page.get("Contents", ())]
            names = [name for name in listed if _WANTED.fullmatch(name)]
            sums = self._sums() if SUMS in names else {}
            found = [self._look(name, sums) for name in names if name != SUMS]
        if not found:
            raise SourceError(f"{self.address}: no file of a model is there; check bucket and prefix")
        return found

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Remote."""
        with self._errors():
            given = self._client.get_object(
                Bucket=self._bucket, Key=self._key(file.name), Range=f"bytes={start}-", IfMatch=file.version
            )
            yield from given["Body"].iter_chunks(CHUNK_BYTES)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _sums(self) -> dict[str, str]:
        body = self._client.get_object(Bucket=self._bucket, Key=self._key(SUMS))["Body"].read()
        return parse_sums(body.decode("utf-8", "replace"))

    def _look(self, name: str, sums: dict[str, str]) -> RemoteFile:
        head = self._client.head_object(Bucket=self._bucket, Key=self._key(name), ChecksumMode="ENABLED")
        etag = head["ETag"]
        own = head.get("ChecksumSHA256", "")  # of parts, it ends in their number and is no hash of the file
        sha256 = sums.get(name) or (base64.b64decode(own).hex() if own and "-" not in own else "")
        plain = re.fullmatch(r'"([0-9a-f]{32})"', etag)
        md5 = plain[1] if plain and head.get("ServerSideEncryption") != _SSE_KMS else ""
        return RemoteFile(name, head["ContentLength"], etag, sha256, md5)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError

        try:
            yield
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
                raise BrokenOffError(f"{self.address}: {error}") from error
            raise SourceError(f"{self.address}: {error}; check bucket, prefix and credentials") from error
        except NoCredentialsError as error:
            raise SourceError(
                f"{self.address}: no credentials; give source.s3.credentialsFile, or set AWS_ACCESS_KEY_ID"
            ) from error
        except (HTTPClientError, BotoCoreError, ConnectionError) as error:
            raise BrokenOffError(f"{self.address}: {error}") from error


def parse_sums(text: str) -> dict[str, str]:
    """What sha256sum writes: `<64 hex digits>  <name>`. Lines of another form are passed over."""
    lines = re.findall(r"^([0-9a-fA-F]{64})[ \t]+\*?(?:\./)?([\w.-]+)\r?$", text, re.MULTILINE)
    return {name: digest.lower() for digest, name in lines}


@contextmanager
def answer(url: str, token: str, headers: dict[str, str], method: str = "GET") -> Iterator[Any]:
    """A web server's answer; None when it has no such file. Raises SourceError, BrokenOffError and PastEndError."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **headers}, method=method)
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")  # for this server alone
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as given:
            yield given
    except urllib.error.HTTPError as error:
        if error.code in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
            yield None
        elif error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code == HTTPStatus.TOO_MANY_REQUESTS:
            raise BrokenOffError(f"{url}: the server answers {error.code}") from error
        elif error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and "Range" in headers:
            raise PastEndError(f"{url}: has no bytes in {headers['Range']}") from error
        else:
            raise SourceError(f"{url}: the server answers {error.code}; check address and access") from error
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        raise BrokenOffError(f"{url}: {error}") from error


def _version(given: Any) -> str:
    return given.headers.get("ETag") or given.headers.get("Last-Modified") or ""


def skip(given: Any, nbytes: int) -> None:
    """The server sent the file from its beginning, though a later part was asked for."""
    while nbytes > 0 and (chunk := given.read(min(nbytes, CHUNK_BYTES))):
        nbytes -= len(chunk)
