"""Where a model's files come from: a directory of this machine, the Hugging Face hub, an S3 store or a web server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aegaeon_proto.credentials import CredentialsError
from aegaeon_proto.folders import OutsideError, check_within
from aegaeon_proto.v1 import model_pb2 as pb
from aegaeon_sidecar.errors import ModelError, SourceError, WeightsError
from aegaeon_sidecar.weights.disk import DiskTier, Stored
from aegaeon_sidecar.weights.download import Progress
from aegaeon_sidecar.weights.hub import HubRemote, snapshot
from aegaeon_sidecar.weights.remote import HttpRemote, Remote, S3Remote


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
    """Brings every kind of source to a directory of this machine: what is far away to the disk tier.

    Without one, models of the hub come to the folder that its own library keeps, `hub_cache` or its default.
    """

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
        if kind in (None, "directory"):
            return Located(_directory(source.directory, source.root))
        if self._disk is not None:
            stored = self._disk.obtain(_remote(source), progress, cancelled)
            return Located(stored.directory, stored)
        if kind == "hub":
            return Located(snapshot(source.hub, self._hub_cache))
        raise SourceError(f"source.{kind} needs a place on disk; set disk.folder in the sidecar's configuration")


def _remote(source: pb.ModelSource) -> Remote:
    if source.HasField("hub"):
        return HubRemote(source.hub)
    return S3Remote(source.s3) if source.HasField("s3") else HttpRemote(source.http)


def _directory(given: str, root: str) -> Path:
    directory = Path(given)
    if not directory.is_absolute():
        raise SourceError(f"source.directory {given!r} is not an absolute path; write the whole path")
    if not directory.is_dir():
        raise SourceError(f"source.directory {directory} is no directory on this machine; check the path and the mount")
    try:
        check_within(directory, root)
    except OutsideError as error:
        raise SourceError(f"source.directory: {error}") from error
    except OSError as error:
        raise SourceError(f"source.directory {directory} cannot be read: {error.strerror}") from error
    return directory
