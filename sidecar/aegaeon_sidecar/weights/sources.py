"""Sources of a model's files: a local directory, the Hugging Face hub, an S3 store or a web server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from aegaeon_proto.engine.catalog import DirectorySource, HttpSource, HubSource, S3Source, Source
from aegaeon_proto.folders import OutsideError, check_within
from aegaeon_proto.outbound.client import Client, Outbound
from aegaeon_proto.outbound.slots import http_slot, hub_slot, s3_slot
from aegaeon_sidecar.domain.errors import ModelError, SourceError, WeightsError
from aegaeon_sidecar.weights.addresses import plainly
from aegaeon_sidecar.weights.boundary import Guarded, boundary
from aegaeon_sidecar.weights.disk import ANY_ROOM, DiskTier, Stored
from aegaeon_sidecar.weights.download import Progress
from aegaeon_sidecar.weights.remote import HttpRemote
from aegaeon_sidecar.weights.reservation import Claim
from aegaeon_sidecar.weights.s3 import S3Remote

_KINDS = {HubSource: "hub", S3Source: "s3", HttpSource: "http"}


@dataclass(frozen=True, slots=True)
class Located:
    """A directory with config.json and weights; `stored`: of what came from afar, its place on disk."""

    directory: Path
    stored: Stored | None = None

    @contextmanager
    def reading(self) -> Iterator[Path]:
        """The directory. What came from afar and proves to be no model that can be served is not kept as if it were.

        Raises AbsentError when it was evicted."""
        with self.stored.kept() if self.stored is not None else nullcontext():
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

    def reconsider(self) -> None:
        """See DiskTier."""
        if self._disk is not None:
            self._disk.reconsider()

    def changed_ns(self) -> int:
        """See DiskTier."""
        return 0 if self._disk is None else self._disk.changed_ns()

    def locate(
        self,
        source: Source,
        progress: Progress,
        cancelled: Callable[[], bool],
        names: Seq[str] = (),
        claim: Claim = ANY_ROOM,
    ) -> Located:
        """Fetch what is not on this machine yet: a model, or files of these `names`, which a web server cannot list.

        Raises SourceError, DiskFullError, FillCancelledError.
        """
        if isinstance(source, DirectorySource):
            return Located(_directory(source.directory, source.root))
        if self._disk is not None:
            remote = remote_of(source, self._outbound.client(cancelled), self._outbound.ambient, names)
            stored = self._disk.obtain(remote, progress, cancelled, claim)
            return Located(stored.directory, stored)
        if isinstance(source, HubSource) and self._outbound.ambient:
            from aegaeon_sidecar.weights.hub import snapshot  # the hub's library, which other sources do not wait for

            with boundary(plainly(f"hub:{source.repository}")):
                return Located(snapshot(source, self._hub_cache))
        kind = _KINDS[type(source)]
        raise SourceError(f"source.{kind} needs a disk tier; set disk.folder in the sidecar's configuration")


def slot_of(source: HubSource | S3Source | HttpSource) -> str:
    """The slot in which fetches of a remote source take turns (aegaeon_proto/outbound/slots.py)."""
    match source:
        case HubSource(repository):
            return hub_slot(repository)
        case S3Source(bucket, endpoint=endpoint):
            return s3_slot(endpoint, bucket)
        case HttpSource(url):
            return http_slot(url)


def remote_of(
    source: HubSource | S3Source | HttpSource, client: Client, ambient: bool, names: Seq[str] = ()
) -> Guarded:
    """The remote behind a source. Raises SourceError."""
    file = source.credentials_file
    match source:
        case HubSource():
            from aegaeon_sidecar.weights.hub import HubRemote

            name = plainly(f"hub:{source.repository}")
            return Guarded(name, client, file, lambda: HubRemote(source, client, ambient))
        case S3Source():
            return Guarded(plainly(f"s3:{source.bucket}"), client, file, lambda: S3Remote(source, client, ambient))
        case HttpSource():
            return Guarded("source.http.url", client, file, lambda: HttpRemote(source, client, names), names)


def _directory(text: str, root: str) -> Path:
    directory = Path(text)
    if not directory.is_absolute():
        raise SourceError(f"source.directory {text!r} is not an absolute path; write the whole path")
    if not directory.is_dir():
        raise SourceError(
            f"source.directory {directory} is not a directory on this machine; check the path and the mount"
        )
    try:
        check_within(directory, root)
    except OutsideError as error:
        raise SourceError(f"source.directory: {error}") from error
    except OSError as error:
        raise SourceError(f"source.directory {directory} cannot be read: {error.strerror}") from error
    return directory
