"""Addresses of remote sources, for people, and the names of their copies in the disk tier. Asks no server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from urllib.parse import quote

from aegaeon_proto.engine.catalog import DirectorySource, HttpSource, HubSource, S3Source, Source

_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def plainly(name: str) -> str:
    """A name that a tenant gave, in printable ASCII; different names stay different."""
    return quote(name, safe=_PLAIN)


def address_of(source: HubSource | S3Source | HttpSource) -> str:
    """The address of a source, for people."""
    match source:
        case HubSource(repository, revision):
            return plainly(f"hub:{repository} at {revision or 'its default branch'}")
        case S3Source(bucket, prefix, endpoint):
            return plainly(f"s3://{bucket}/{prefix.strip('/')}{f' at {endpoint}' if endpoint else ''}")
        case HttpSource(url):
            return url.rstrip("/")


def key_of(address: str, credentials_file: str, names: Sequence[str] = ()) -> str:
    """Tells apart what was fetched with other credentials: who has none must not find it on this machine's disk. And
    which of the files of a folder were asked for (`names`), where these are not all."""
    key = f"{address}\0{credentials_file}" if credentials_file else address
    return key + "".join(f"\0\0{name}" for name in names)


def folder_name(key: str) -> str:
    """The name of the source's copy in the disk tier."""
    return sha256(key.encode()).hexdigest()[:32]


def folder_names(sources: Iterable[Source]) -> frozenset[str]:
    """The folder names of the models of these sources; local folders have no copy."""
    far = (source for source in sources if not isinstance(source, DirectorySource))
    return frozenset(folder_name(key_of(address_of(source), source.credentials_file)) for source in far)
