"""Models in an S3-compatible store. aegaeon_proto/outbound/store.py signs and sends the requests."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice

from aegaeon_proto.credentials import s3_keys
from aegaeon_proto.engine.catalog import S3Source
from aegaeon_proto.outbound.client import CHUNK_BYTES, Client
from aegaeon_proto.outbound.store import read_whole, s3_client
from aegaeon_proto.redaction import sentence
from aegaeon_sidecar.domain.errors import SourceError
from aegaeon_sidecar.weights.addresses import address_of
from aegaeon_sidecar.weights.remote import (
    MOST_SUMS_BYTES,
    SUMS,
    WANTED,
    BrokenOffError,
    RemoteFile,
    check_count,
    is_temporary,
    parse_sums,
    retry_after_s,
)

_SSE_KMS = "aws:kms"
_MOST_KEYS = 20_000  # that are looked at below a prefix


class S3Remote:
    """A prefix of a bucket. `ambient`: without a file of credentials they come from where AWS clients take them."""

    def __init__(self, source: S3Source, client: Client, ambient: bool) -> None:
        self._bucket = source.bucket
        self._prefix = source.prefix.strip("/")
        self.address = address_of(source)
        self._client = s3_client(source.endpoint, s3_keys(source.credentials_file), client, ambient)

    def files(self) -> list[RemoteFile]:
        """See Remote."""
        with self._errors():
            names = [name for name in islice(self._keys(), _MOST_KEYS) if WANTED.fullmatch(name)]
            check_count(self.address, len(names))
            sums = self._sums() if SUMS in names else {}
            files = [self._look(name, sums) for name in names if name != SUMS]
        if not files:
            raise SourceError(f"{self.address}: contains no model files; check bucket and prefix")
        return files

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Remote."""
        rest = {"Range": f"bytes={start}-"} if start else {}  # of an empty object even byte 0 is past its end
        with self._errors():
            response = self._client.get_object(
                Bucket=self._bucket, Key=self._key(file.name), IfMatch=file.version, **rest
            )
            with closing(response["Body"]) as body:
                yield from body.iter_chunks(CHUNK_BYTES)

    def _keys(self) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._key(""))
        for page in pages:
            for entry in page.get("Contents", ()):
                yield entry["Key"].removeprefix(self._key(""))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _sums(self) -> dict[str, str]:
        body = self._client.get_object(Bucket=self._bucket, Key=self._key(SUMS))["Body"]
        content = read_whole(body, MOST_SUMS_BYTES, SUMS)
        return parse_sums(content.decode("utf-8", "replace"))

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
        from botocore.exceptions import ClientError, HTTPClientError, IncompleteReadError, NoCredentialsError

        try:
            yield
        except ClientError as error:
            metadata = error.response.get("ResponseMetadata", {})
            message = f"{self.address}: {sentence(error)}"
            if is_temporary(metadata.get("HTTPStatusCode", 0)):
                headers = metadata.get("HTTPHeaders", {})
                raise BrokenOffError(message, retry_after_s(headers.get("retry-after"))) from error
            raise SourceError(f"{message}; check bucket, prefix and credentials") from error
        except NoCredentialsError as error:
            raise SourceError(
                f"{self.address}: no credentials; set source.s3.credentialsFile, or AWS_ACCESS_KEY_ID"
            ) from error
        except (HTTPClientError, IncompleteReadError) as error:
            raise BrokenOffError(f"{self.address}: {sentence(error)}") from error
