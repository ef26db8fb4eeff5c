"""A client of S3-compatible stores: botocore signs and parses, the one client for sources sends.

It uses the machine's environment, files and metadata service only with `ambient`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cache
from typing import Any

from aegaeon_proto.outbound.client import CHUNK_BYTES, Answer, Client
from aegaeon_proto.outbound.errors import RefusedError
from aegaeon_proto.outbound.urls import check_source, parse

_MOST_ANSWER_BYTES = 16 << 20  # of a listing's page, or of an error


def s3_client(endpoint: str, keys: Mapping[str, str], client: Client, ambient: bool) -> Any:
    """botocore's client, for one thread. Without `keys` it is anonymous, or the environment's when `ambient`.

    Raises RefusedError (no boto3, or no URL) and what botocore raises.
    """
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.awsrequest import AWSResponse
        from botocore.config import Config
    except ImportError as error:
        raise RefusedError("source.s3 needs the package boto3; install aegaeon[s3]") from error

    def send(request: Any, **_: object) -> Any:
        answer = client.send(parse(request.url), request.method, dict(request.headers.items()))
        return AWSResponse(request.url, answer.status, answer.headers, _Raw(answer, request.method))

    anonymous = not keys and not ambient
    config = Config(
        retries={"total_max_attempts": 1},
        ignore_configured_endpoint_urls=not ambient,
        **({"signature_version": UNSIGNED} if anonymous else {}),
    )
    session = boto3.Session() if ambient else boto3.Session(botocore_session=_isolated())
    made = session.client("s3", endpoint_url=check_source(endpoint) if endpoint else None, **keys, config=config)
    made.meta.events.register("before-send.s3", send)  # its answer takes the place of botocore's own sending
    return made


def read_whole(body: Any, most_bytes: int, name: str) -> bytes:
    """All bytes of an object; its body is closed. Raises RefusedError when there are more, and what botocore raises."""
    content = bytearray()
    with closing(body):
        for chunk in body.iter_chunks(CHUNK_BYTES):
            content += chunk
            if len(content) > most_bytes:
                raise RefusedError(f"{name}: has more than {most_bytes} bytes, which is too much for it")
    return bytes(content)


def _isolated() -> Any:
    """A session that reads no environment variable and no file, and asks no metadata service."""
    from botocore.credentials import CredentialResolver
    from botocore.session import Session

    known = {name: (None, None, default, cast) for name, (_, _, default, cast) in Session.SESSION_VARIABLES.items()}
    files = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None))
    session = Session(session_vars={**known, **files})
    session.register_component("credential_provider", CredentialResolver(providers=[]))
    session.register_component("data_loader", _loader())
    return session


@cache
def _loader() -> Any:
    """The descriptions of the service, read once: they are most of the 150 ms of processor that a client takes."""
    from botocore.loaders import create_loader

    return create_loader()


class _Raw:
    """The interface that botocore needs of an answer's body."""

    def __init__(self, answer: Answer, method: str) -> None:
        self._answer = answer
        self._empty = method == "HEAD"

    def stream(self) -> Iterator[bytes]:
        """Yield the body at once: botocore parses it."""
        try:
            yield b"" if self._empty else self._answer.read_all(_MOST_ANSWER_BYTES)
        finally:
            self.close()

    def read(self, amt: int) -> bytes:
        """Read the next bytes of a file."""
        return b"" if self._empty else self._answer.part(amt)

    def close(self) -> None:
        self._answer.close()
