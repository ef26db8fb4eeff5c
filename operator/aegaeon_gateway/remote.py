"""The small files of a model on a web server or in an S3 store: tokenizer, templates, configuration; never weights."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from hashlib import sha256
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aegaeon_gateway.errors import TokenizerError
from aegaeon_proto.credentials import s3_keys, token_of
from aegaeon_proto.v1.model_pb2 import HttpSource, ModelSource, S3Source

_NAMES = (
    "config.json",
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
_MOST_BYTES = 256 << 20
_TIMEOUT_S = 30.0

Get = Callable[[str], bytes | None]


def fetch(source: ModelSource, folder: Path) -> Path:
    """The directory inside `folder` with those of the files that there are. Raises TokenizerError, CredentialsError."""
    directory = folder / sha256(source.SerializeToString(deterministic=True)).hexdigest()[:32]
    if directory.is_dir():
        return directory
    get = _s3(source.s3) if source.WhichOneof("kind") == "s3" else _http(source.http)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix="part-") as part:
            for name in _NAMES:
                if (data := get(name)) is not None:
                    (Path(part) / name).write_bytes(data)
            Path(part).rename(directory)  # whole or not at all
    except OSError as error:
        raise TokenizerError(f"{directory}: cannot be stored: {error}") from error
    return directory


def _http(source: HttpSource) -> Get:
    token = token_of(source.credentials_file)

    def get(name: str) -> bytes | None:
        url = f"{source.url.rstrip('/')}/{name}"
        request = urllib.request.Request(url)
        if token:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return bytes(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            if error.code in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                return None
            raise TokenizerError(f"{url}: the server answers {error.code}") from error
        except (OSError, HTTPException) as error:
            raise TokenizerError(f"{url}: cannot be fetched: {error}") from error

    return get


def _s3(source: S3Source) -> Get:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise TokenizerError("source.s3 needs the package boto3; install aegaeon[s3]") from error
    client: Any = boto3.client("s3", endpoint_url=source.endpoint or None, **s3_keys(source.credentials_file))
    prefix = source.prefix.strip("/")

    def get(name: str) -> bytes | None:
        key = f"{prefix}/{name}" if prefix else name
        try:
            return bytes(client.get_object(Bucket=source.bucket, Key=key)["Body"].read(_MOST_BYTES))
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "NoSuchKey":
                return None
            raise TokenizerError(f"s3://{source.bucket}/{key}: {error}") from error
        except BotoCoreError as error:
            raise TokenizerError(f"s3://{source.bucket}/{key}: cannot be fetched: {error}") from error

    return get
