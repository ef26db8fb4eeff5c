"""Where a model's files come from: a directory of this machine, the Hugging Face hub, an S3 store or a web server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is the client's own, not re-exported
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
)

from aegaeon_proto.credentials import CredentialsError, token_of
from aegaeon_proto.v1 import model_pb2 as pb
from aegaeon_sidecar.errors import ModelError, SourceError, WeightsError
from aegaeon_sidecar.weights.disk import DiskTier, Stored
from aegaeon_sidecar.weights.download import Progress
from aegaeon_sidecar.weights.remote import HttpRemote, S3Remote

_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")


@dataclass(frozen=True, slots=True)
class Located:
    """A directory with config.json and weights; `stored` keeps what came from afar on disk until it is closed."""

    directory: Path
    stored: Stored | None = None

    @contextmanager
    def reading(self) -> Iterator[Path]:
        """The directory. What came from afar and proves to be no model that can be served is not kept as if it were."""
        try:
            yield self.directory
        except ModelError as error:
            if self.stored is not None:
                self.stored.doubt(damaged=isinstance(error, WeightsError))
            raise


class Sources:
    """Brings every kind of source to a directory of this machine."""

    def __init__(self, hub_cache: Path | None, disk: DiskTier | None) -> None:
        self._hub_cache = hub_cache
        self._disk = disk

    def locate(self, source: pb.ModelSource, progress: Progress, cancelled: Callable[[], bool]) -> Located:
        """Fetch what is not on this machine yet. Raises SourceError, DiskFullError, FillCancelledError."""
        try:
            return self._locate(source, progress, cancelled)
        except CredentialsError as error:
            raise SourceError(str(error)) from error

    def _locate(self, source: pb.ModelSource, progress: Progress, cancelled: Callable[[], bool]) -> Located:
        kind = source.WhichOneof("kind")
        if kind == "hub":
            return Located(_from_hub(source.hub, self._hub_cache))
        if kind in ("s3", "http"):
            if self._disk is None:
                raise SourceError(
                    f"source.{kind} needs a place on disk; set disk.folder in the sidecar's configuration"
                )
            remote = S3Remote(source.s3) if kind == "s3" else HttpRemote(source.http)
            stored = self._disk.obtain(remote, progress, cancelled)
            return Located(stored.directory, stored)
        return Located(_directory(source.directory))


def _directory(given: str) -> Path:
    directory = Path(given)
    if not directory.is_absolute():
        raise SourceError(f"source.directory {given!r} is not an absolute path; write the whole path")
    if not directory.is_dir():
        raise SourceError(f"source.directory {directory} is no directory on this machine; check the path and the mount")
    return directory


def _from_hub(source: pb.HubSource, hub_cache: Path | None) -> Path:
    name = f"{source.repository} at {source.revision or 'its default branch'}"
    try:
        path = snapshot_download(
            source.repository,
            revision=source.revision or None,
            cache_dir=hub_cache,
            token=token_of(source.credentials_file) or None,  # None: the environment's
            allow_patterns=list(_PATTERNS),
        )
    except HFValidationError as error:
        raise SourceError(f"source.hub.repository {source.repository!r} is no hub id; write owner/name") from error
    except LocalEntryNotFoundError as error:
        raise SourceError(f"{name}: the hub cannot be reached and no copy is cached; check the network") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise SourceError(
            f"{name}: the hub answers {status}; check the id, the revision and the access token"
        ) from error
    except HTTPError as error:
        raise SourceError(f"{name}: the connection to the hub broke: {error}; check the network") from error
    except OSError as error:
        raise SourceError(f"{name}: cannot be stored: {error}; check hub_cache and the free space") from error
    return Path(path)
