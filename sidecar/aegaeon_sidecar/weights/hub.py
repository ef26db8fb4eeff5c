"""Models of the Hugging Face hub: through the disk tier where there is one, else where its own library keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from http import HTTPStatus
from pathlib import Path

from huggingface_hub import HfApi, get_token, hf_hub_url, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is the client's own, not re-exported
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.hf_api import RepoSibling

from aegaeon_proto.credentials import token_of
from aegaeon_proto.v1 import model_pb2 as pb
from aegaeon_sidecar.errors import SourceError
from aegaeon_sidecar.weights.remote import CHUNK_BYTES, TIMEOUT_S, RemoteFile, answer, skip

_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")


class HubRemote:
    """A revision of a repository. The commit is that of the moment at which its files are listed."""

    def __init__(self, source: pb.HubSource) -> None:
        self._repository = source.repository
        self._revision = source.revision or None
        self._token = token_of(source.credentials_file) or None  # None: the environment's
        self._commit = ""
        self.address = f"hub:{source.repository} at {_revision(source)}"

    def files(self) -> list[RemoteFile]:
        """See Remote."""
        with _errors(self.address):
            info = HfApi().model_info(
                self._repository, revision=self._revision, timeout=TIMEOUT_S, files_metadata=True, token=self._token
            )
        found = [_file(sibling) for sibling in info.siblings or () if _is_wanted(sibling.rfilename)]
        if not found or not info.sha:
            raise SourceError(f"{self.address}: no file of a model is there; check repository and revision")
        self._commit = info.sha
        return found

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """See Remote. What a commit holds never changes."""
        url = hf_hub_url(self._repository, file.name, revision=self._commit)
        headers = {"Range": f"bytes={start}-"} if start else {}
        with answer(url, self._token or get_token() or "", headers) as given:
            if given is None:
                raise SourceError(f"{url}: is not there any more; send the catalog again")
            if start and given.status != HTTPStatus.PARTIAL_CONTENT:
                skip(given, start)
            while chunk := given.read(CHUNK_BYTES):
                yield chunk


def snapshot(source: pb.HubSource, hub_cache: Path | None) -> Path:
    """The folder of the library's own cache; its progress is not told, and it is not given up. Raises SourceError."""
    name = f"hub:{source.repository} at {_revision(source)}"
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
            raise SourceError(f"{name}: cannot be stored: {error}; check hub_cache and the free space") from error
    return Path(path)


def _revision(source: pb.HubSource) -> str:
    return source.revision or "its default branch"


def _is_wanted(name: str) -> bool:
    return "/" not in name and name[0] != "." and any(fnmatchcase(name, pattern) for pattern in _PATTERNS)


def _file(sibling: RepoSibling) -> RemoteFile:
    """Large files have a SHA-256, small ones the hash that git names them by."""
    nbytes = -1 if sibling.size is None else sibling.size
    blob = sibling.blob_id or ""
    if sibling.lfs is not None:
        return RemoteFile(sibling.rfilename, nbytes, blob, sha256=sibling.lfs.sha256)
    return RemoteFile(sibling.rfilename, nbytes, blob, git=blob if nbytes >= 0 else "")


@contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        yield
    except HFValidationError as error:
        raise SourceError(f"{name}: is no hub id; write owner/name in source.hub.repository") from error
    except LocalEntryNotFoundError as error:
        raise SourceError(f"{name}: the hub cannot be reached and no copy is cached; check the network") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise SourceError(
            f"{name}: the hub answers {status}; check the id, the revision and the access token"
        ) from error
    except (HTTPError, OfflineModeIsEnabled) as error:
        raise SourceError(f"{name}: the hub cannot be reached: {error}; check the network") from error
