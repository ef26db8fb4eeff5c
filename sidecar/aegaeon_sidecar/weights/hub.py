"""Models of the Hugging Face hub: in the disk tier if there is one, else in the hub library's own cache.

Only the latter case uses the library, in the environment of the machine's owner; the disk tier calls the hub's API.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from huggingface_hub import constants, get_token, hf_hub_url, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is the client's own, not re-exported
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from aegaeon_proto.credentials import token_of
from aegaeon_proto.engine.catalog import HubSource
from aegaeon_proto.outbound.client import Client
from aegaeon_proto.outbound.urls import HUB_FILES_HOSTS
from aegaeon_proto.pooling import POOLING
from aegaeon_proto.redaction import sentence
from aegaeon_proto.text_files import TEXT_FILES
from aegaeon_sidecar.domain.errors import SourceError
from aegaeon_sidecar.weights.addresses import address_of
from aegaeon_sidecar.weights.remote import (
    BrokenOffError,
    RemoteFile,
    answer,
    check_count,
    from_byte,
    is_temporary,
    retry_after_s,
)

_PATTERNS = ("*.json", "*.safetensors", "*.jinja", *TEXT_FILES)
_MOST_LIST_BYTES = 64 << 20  # of an answer that lists files


class HubRemote:
    """A revision of a repository. The commit is that of the moment at which its files are listed.

    `ambient`: without a file of credentials the token is the environment's.
    """

    def __init__(self, source: HubSource, client: Client, ambient: bool) -> None:
        self._repository = source.repository
        self._revision = source.revision
        self.address = address_of(source)
        with _errors(self.address):
            hf_hub_url(source.repository, "config.json")  # refuses what is no id
        self._client = client
        self._token = token_of(source.credentials_file) or (get_token() or "" if ambient else "")
        self._commit = ""

    def files(self) -> list[RemoteFile]:
        """See Remote."""
        info = self._info()
        try:
            files = [_file(entry) for entry in info["siblings"] if _is_wanted(str(entry["rfilename"]))]
            self._commit = str(info["sha"])
        except (LookupError, TypeError, ValueError) as error:
            raise SourceError(f"{self.address}: the hub's answer cannot be parsed: {sentence(error)}") from error
        check_count(self.address, len(files))
        if not files:
            raise SourceError(f"{self.address}: contains no model files; check repository and revision")
        return files

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Remote. The content of a commit never changes."""
        url = hf_hub_url(self._repository, file.name, revision=self._commit)
        headers = {"Range": f"bytes={start}-"} if start else {}
        with answer(self._client, url, self._token, headers, hosts=HUB_FILES_HOSTS) as response:
            if response is None:
                raise SourceError(f"{self.address}/{file.name}: no longer exists; send the catalog again")
            yield from from_byte(response, start)

    def _info(self) -> Any:
        revision = f"/revision/{quote(self._revision, safe='')}" if self._revision else ""
        url = f"{constants.ENDPOINT}/api/models/{self._repository}{revision}?blobs=true"
        with self._client.open(url, token=self._token, hosts=HUB_FILES_HOSTS) as response:
            if is_temporary(response.status):
                wait_s = retry_after_s(response.headers.get("Retry-After"))
                raise BrokenOffError(f"{self.address}: the hub answers {response.status}", wait_s)
            if response.status != HTTPStatus.OK:
                raise SourceError(_answers(self.address, response.status))
            return json.loads(response.read_all(_MOST_LIST_BYTES))


def snapshot(source: HubSource, hub_cache: Path | None) -> Path:
    """The folder of the library's own cache; it reports no progress and cannot be cancelled. Raises SourceError."""
    name = address_of(source)
    with _errors(name):
        try:
            path = snapshot_download(
                source.repository,
                revision=source.revision or None,
                cache_dir=hub_cache,
                token=token_of(source.credentials_file) or None,
                allow_patterns=list(_PATTERNS),
            )
        except (HfHubHTTPError, LocalEntryNotFoundError, HTTPError, OfflineModeIsEnabled):
            raise
        except OSError as error:
            raise SourceError(
                f"{name}: cannot be stored: {sentence(error)}; check hub_cache and the free space"
            ) from error
    return Path(path)


def _answers(name: str, status: int) -> str:
    return f"{name}: the hub answers {status}; check the id, the revision and the access token"


def _is_wanted(name: str) -> bool:
    plain = name.isascii() and name.isprintable() and "/" not in name and name[:1] != "." and len(name) <= 200
    return name == POOLING or (plain and any(fnmatchcase(name, pattern) for pattern in _PATTERNS))


def _file(entry: dict[str, Any]) -> RemoteFile:
    """Large files have a SHA-256, small ones the hash that git names them by."""
    nbytes = -1 if entry.get("size") is None else max(int(entry["size"]), -1)
    blob = str(entry.get("blobId") or "")
    if entry.get("lfs"):
        return RemoteFile(entry["rfilename"], nbytes, blob, sha256=str(entry["lfs"]["sha256"]))
    return RemoteFile(entry["rfilename"], nbytes, blob, git=blob if nbytes >= 0 else "")


@contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except HFValidationError as error:
        raise SourceError(f"{name}: not a hub id; write owner/name in source.hub.repository") from error
    except LocalEntryNotFoundError as error:
        raise SourceError(f"{name}: the hub cannot be reached and no copy is cached; check the network") from error
    except HfHubHTTPError as error:
        raise SourceError(_answers(name, error.response.status_code)) from error
    except (HTTPError, OfflineModeIsEnabled) as error:
        raise SourceError(f"{name}: the hub cannot be reached: {sentence(error)}; check the network") from error
