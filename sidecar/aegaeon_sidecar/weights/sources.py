"""Where a model's files come from: a directory of this machine, the Hugging Face hub, an S3 store or a web server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aegaeon_proto.folders import OutsideError, check_within
from aegaeon_proto.outbound.client import Client, Outbound
from aegaeon_proto.v1 import model_pb2 as pb
from aegaeon_sidecar.domain.errors import ModelError, SourceError, WeightsError
from aegaeon_sidecar.weights.boundary import Guarded, boundary
from aegaeon_sidecar.weights.disk import DiskTier, Stored
from aegaeon_sidecar.weights.download import Progress
from aegaeon_sidecar.weights.hub import HubRemote, snapshot
from aegaeon_sidecar.weights.remote import HttpRemote, plainly
from aegaeon_sidecar.weights.s3 import S3Remote


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

    Without one, models of the hub come to the folder that its own library keeps, `hub_cache` or its default, where the
    environment is the owner's (`outbound.ambient`).
    """

    def __init__(self, hub_cache: Path | None, disk: DiskTier | None, outbound: Outbound) -> None:
        self._hub_cache = hub_cache
        self._disk = disk
        self._outbound = outbound

    def locate(self, source: pb.ModelSource, progress: Progress, cancelled: Callable[[], bool]) -> Located:
        """Fetch what is not on this machine yet. Raises SourceError, DiskFullError, FillCancelledError."""
        kind = source.WhichOneof("kind")
        if kind in (None, "directory"):
            return Located(_directory(source.directory, source.root))
        if self._disk is not None:
            remote = remote_of(source, self._outbound.client(cancelled), self._outbound.ambient)
            stored = self._disk.obtain(remote, progress, cancelled)
            return Located(stored.directory, stored)
        if kind == "hub" and self._outbound.ambient:
            with boundary(plainly(f"hub:{source.hub.repository}")):
                return Located(snapshot(source.hub, self._hub_cache))
        raise SourceError(f"source.{kind} needs a place on disk; set disk.folder in the sidecar's configuration")


def remote_of(source: pb.ModelSource, client: Client, ambient: bool) -> Guarded:
    """What is behind a source from afar. Raises SourceError."""
    if source.HasField("hub"):
        hub, name = source.hub, plainly(f"hub:{source.hub.repository}")
        return Guarded(name, client, hub.credentials_file, lambda: HubRemote(hub, client, ambient))
    if source.HasField("s3"):
        s3, name = source.s3, plainly(f"s3:{source.s3.bucket}")
        return Guarded(name, client, s3.credentials_file, lambda: S3Remote(s3, client, ambient))
    http = source.http
    return Guarded("source.http.url", client, http.credentials_file, lambda: HttpRemote(http, client))


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
